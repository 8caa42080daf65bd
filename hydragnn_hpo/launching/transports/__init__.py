"""Start agents on hosts: one file for each way of starting them."""
