cat > /app/count-errors <<'SCRIPT'
awk '$3 == "ERROR" { count[$2]++ } END { for (name in count) print name, count[name] }' "$1" | sort
SCRIPT
