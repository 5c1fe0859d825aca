if [ "$(cat errors.txt)" = "$(printf '/cart\n/search')" ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
