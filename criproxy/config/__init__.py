"""The config file: typed settings (`settings`, `schema`), and reading them (`load`)."""

from criproxy.config.load import ConfigError, Loaded, Override, OwnFiles, files_of, load, switched_off
from criproxy.config.schema import placed, restart_keys
from criproxy.config.settings import Config, Proxy

__all__ = [
    "Config",
    "ConfigError",
    "Loaded",
    "Override",
    "OwnFiles",
    "Proxy",
    "files_of",
    "load",
    "placed",
    "restart_keys",
    "switched_off",
]
