"""What is looked at on one host: small functions that give plain facts and judge nothing."""
