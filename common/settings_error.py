"""The error of every setting that cannot be used."""


class SettingsError(ValueError):
    """A setting that is unknown or out of range; the message names it in one line."""
