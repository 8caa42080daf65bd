"""How agents get onto hosts: one file for each thing that starts them."""
