"""Asks a runtime's socket who answers there: one Version call, in the API that it serves."""

from pathlib import Path

import grpc

from criproxy.proxy.cri_pb2 import VersionRequest, VersionResponse
from criproxy.proxy.runtime import APIS, CHANNEL_OPTIONS
from criproxy.proxy.socket import grpc_target


def version(socket: str, timeout_s: float) -> str:
    """Its name and version. Raises ConnectionError when nobody answers, or not like a runtime. Source: CRI Version."""
    with grpc.insecure_channel(grpc_target(Path(socket)), options=CHANNEL_OPTIONS) as channel:
        for api in APIS:
            call = channel.unary_unary(
                f"/{api}.RuntimeService/Version", VersionRequest.SerializeToString, VersionResponse.FromString
            )
            try:
                answer = call(VersionRequest(), timeout=timeout_s)
            except grpc.RpcError as error:
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    continue
                raise ConnectionError(f"{socket}: {error.code().name}: {error.details()}") from error
            return f"{_text(answer.runtime_name)} {_text(answer.runtime_version)}"
    raise ConnectionError(f"{socket} serves none of {', '.join(APIS)}: is its CRI on?")


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
