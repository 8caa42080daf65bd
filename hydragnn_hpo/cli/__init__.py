"""The command line: few verbs, one file each."""
