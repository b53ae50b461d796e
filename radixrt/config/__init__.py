"""User-facing configuration: frozen dataclasses in sections, resolved once. The command line flags are derived from it.

Values determined at run time (the number of KV slots, the context length) are never written back: the messages
`RunnerReady`, `SchedulerReady` and `EngineReady` carry them.
"""

from radixrt.config.sections import (
    DEFAULT_MODEL,
    HOMES,
    SECTIONS,
    CacheConfig,
    Config,
    ConstrainedConfig,
    ExecutorConfig,
    ModelConfig,
    RecoveryConfig,
    SchedulerConfig,
    ServerConfig,
)
from radixrt.config.validation import (
    config_to_dict,
    field_type,
    make_config,
    parse_decision_temperature,
    parse_names,
    parse_networks,
)

__all__ = [
    "DEFAULT_MODEL",
    "HOMES",
    "SECTIONS",
    "CacheConfig",
    "Config",
    "ConstrainedConfig",
    "ExecutorConfig",
    "ModelConfig",
    "RecoveryConfig",
    "SchedulerConfig",
    "ServerConfig",
    "config_to_dict",
    "field_type",
    "make_config",
    "parse_decision_temperature",
    "parse_names",
    "parse_networks",
]
