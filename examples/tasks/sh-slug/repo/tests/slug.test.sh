#!/bin/sh
# Prints one line for each test.
cd "$(dirname "$0")/.." || exit 1

check() {
  name=$1 title=$2 wanted=$3
  got=$(sh bin/slug "$title" 2>&1)
  if [ "$got" = "$wanted" ]; then
    echo "PASSED slug::$name"
  else
    echo "FAILED slug::$name"
    echo "  wanted '$wanted', got '$got'"
  fi
}

check plain "hello world" "hello-world"
check lower_case "Hello World" "hello-world"
check punctuation "What's new, Doc?" "what-s-new-doc"
check repeated_spaces "a   b" "a-b"
check edges "  padded  " "padded"
check digits "Top 10" "top-10"
