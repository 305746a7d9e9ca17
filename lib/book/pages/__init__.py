"""Plain functions that single pages of the book call, one module per page."""
