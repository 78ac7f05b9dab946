"""What a reload may change of how pods are placed."""

from msgspec import Struct

from criproxy.hooks import Chain
from criproxy.pods.admission import AdmissionSettings


class PlacingSettings(Struct, frozen=True):
    """`admission` says who is let into the box, `chain` what is adjusted in the requests of those that are."""

    admission: AdmissionSettings
    chain: Chain
