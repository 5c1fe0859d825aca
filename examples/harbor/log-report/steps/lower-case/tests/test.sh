reward=1
check() { diff "$@" || reward=0; }
check /app/report.txt /tests/report
bash /app/count-errors /tests/hidden.log > /tmp/counted
check /tmp/counted /tests/expected
echo "$reward" > /logs/verifier/reward.txt
