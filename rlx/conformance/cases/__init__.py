"""The cases, one module a family; `rlx.conformance.case.all_cases` collects them."""
