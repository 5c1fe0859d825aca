exec node test/paginate.test.mjs
