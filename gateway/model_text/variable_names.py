"""Names of chat templates' variables: those that requests may set by default, and the gateway's own."""

from fairlane.scheduler.protocol.settings import Names

# They switch reasoning, or say which parts of a prompt are shown, in the templates of models in wide use.
USUAL_VARIABLES = Names(
    (
        *("enable_thinking", "thinking", "thinking_budget", "reasoning_effort", "low_effort"),
        *("preserve_thinking", "clear_thinking", "truncate_history_thinking", "keep_past_thinking", "drop_thinking"),
        *("add_vision_id", "date_string", "model_identity", "tools_in_user_message"),
    )
)
# Variables and functions that only the gateway may define.
RESERVED_VARIABLES = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"),
        *("raise_exception", "strftime_now", "namespace", "range", "dict"),
    )
)
