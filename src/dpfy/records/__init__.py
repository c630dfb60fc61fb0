"""Load private records, and know whose they are, so that no record can stop or announce itself."""

from dpfy._lazy import exports

__getattr__, __all__ = exports(
    __name__,
    {
        "duplicates": ("Duplicates", "Shared", "find_duplicates"),
        "example": ("declared_example",),
        "inspection": ("Finding", "inspect_records"),
        "loaders": ("policy_of_loader",),
        "records": ("Records",),
        "users": ("Users", "records_by_unit"),
    },
)
