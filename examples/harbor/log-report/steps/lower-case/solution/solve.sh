set -e
sed -i 's/\$3 == "ERROR"/toupper($3) == "ERROR"/' /app/count-errors
bash /app/count-errors /app/second.log > /app/report.txt
