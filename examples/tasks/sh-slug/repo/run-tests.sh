exec sh tests/slug.test.sh
