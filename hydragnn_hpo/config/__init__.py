"""Settings without torch: schemas, capabilities and cost formulas. Mirrors the floors."""

from typing import TYPE_CHECKING

from hydragnn_hpo.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from hydragnn_hpo.config.campaign_config import CampaignConfig, MachineConfig
    from hydragnn_hpo.config.command_config import CommandConfig, fill_arguments
    from hydragnn_hpo.config.compatibility import TrialHeads, is_by_gradient, reads_state
    from hydragnn_hpo.config.data_config import (
        SPLITS,
        WIDTHS,
        AttributeConfig,
        CardConfig,
        FileConfig,
        GraphConfig,
        Name,
        PublishedConfig,
        SplitConfig,
        TargetConfig,
    )
    from hydragnn_hpo.config.data_mixture import MixedConfig, targets_of, unite_stats, unite_targets
    from hydragnn_hpo.config.epoch_size import (
        budget_steps,
        compute_epoch_size,
        count_draws,
        mean_degree,
    )
    from hydragnn_hpo.config.machine import (
        HERE,
        PROFILES,
        ContainerConfig,
        LayoutConfig,
        LinkConfig,
        Profile,
        ProfileConfig,
        SiteConfig,
        find_profile,
        flatten_values,
        known_profiles,
        read_profile,
        resolve_machine,
    )
    from hydragnn_hpo.config.machine_checks import cores_of, misspelt
    from hydragnn_hpo.config.memory_model import FULL, HEAP, kept_factor, pass_bytes, weight_copies
    from hydragnn_hpo.config.model_config import MAX_ELEMENT, HeadConfig, ModelConfig
    from hydragnn_hpo.config.model_size import (
        angle_cutoff,
        count_parameters,
        differentiates,
        forward_flops,
        head_conv_dimensions,
        is_graph_scalar,
        kept_bytes,
        mlp_widths,
    )
    from hydragnn_hpo.config.parallel_config import ParallelConfig
    from hydragnn_hpo.config.path_templates import FIELD, fill_path
    from hydragnn_hpo.config.schema import Config
    from hydragnn_hpo.config.search_config import (
        Goal,
        Objective,
        ParameterConfig,
        Scalar,
        SearchConfig,
        Space,
    )
    from hydragnn_hpo.config.toml_files import (
        dump_config,
        load_config,
        parse_config,
        read_toml,
        render_toml,
        to_toml,
        validation_sentence,
    )
    from hydragnn_hpo.config.training_config import TrainConfig
    from hydragnn_hpo.config.trial_config import (
        DISK_FULL,
        FILES_AWAY,
        HALVED,
        INTERRUPTED,
        PEER_LOST,
        STALE,
        Access,
        PlacementConfig,
        TrialConfig,
    )

__all__ = [
    "Access",
    "AttributeConfig",
    "CampaignConfig",
    "CardConfig",
    "CommandConfig",
    "Config",
    "ContainerConfig",
    "DISK_FULL",
    "FIELD",
    "FILES_AWAY",
    "FULL",
    "FileConfig",
    "Goal",
    "GraphConfig",
    "HALVED",
    "HEAP",
    "HERE",
    "HeadConfig",
    "INTERRUPTED",
    "LayoutConfig",
    "LinkConfig",
    "MAX_ELEMENT",
    "MachineConfig",
    "MixedConfig",
    "ModelConfig",
    "Name",
    "Objective",
    "PEER_LOST",
    "PROFILES",
    "ParallelConfig",
    "ParameterConfig",
    "PlacementConfig",
    "Profile",
    "ProfileConfig",
    "PublishedConfig",
    "SPLITS",
    "STALE",
    "Scalar",
    "SearchConfig",
    "SiteConfig",
    "Space",
    "SplitConfig",
    "TargetConfig",
    "TrainConfig",
    "TrialConfig",
    "TrialHeads",
    "WIDTHS",
    "angle_cutoff",
    "budget_steps",
    "compute_epoch_size",
    "cores_of",
    "count_draws",
    "count_parameters",
    "differentiates",
    "dump_config",
    "fill_arguments",
    "fill_path",
    "find_profile",
    "flatten_values",
    "forward_flops",
    "head_conv_dimensions",
    "is_by_gradient",
    "is_graph_scalar",
    "kept_bytes",
    "kept_factor",
    "known_profiles",
    "load_config",
    "mean_degree",
    "misspelt",
    "mlp_widths",
    "parse_config",
    "pass_bytes",
    "read_profile",
    "read_toml",
    "reads_state",
    "render_toml",
    "resolve_machine",
    "targets_of",
    "to_toml",
    "unite_stats",
    "unite_targets",
    "validation_sentence",
    "weight_copies",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, __file__)
