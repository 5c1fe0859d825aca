if bash /app/count-errors /tests/hidden.log | diff - /tests/expected; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
