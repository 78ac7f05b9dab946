"""The config file: typed settings (`settings`, `schema`), and reading them (`load`)."""

from criproxy.config.load import ConfigError, Loaded, Override, files_of, load, load_above
from criproxy.config.schema import restart_keys
from criproxy.config.settings import Config, Proxy

__all__ = ["Config", "ConfigError", "Loaded", "Override", "Proxy", "files_of", "load", "load_above", "restart_keys"]
