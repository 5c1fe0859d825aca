import { forEach, type Repositories } from './table.ts';

/** C, C++, Go and Rust repositories of SWE-bench Multilingual. Source: `swebench/harness/constants/` of swebench 4.1.0. */
export const C_GO_RUST: Repositories = {
  'redis/redis': {
    parser: 'parse_log_redis',
    commands: forEach(
      'TERM=dumb ./runtest --durable --single {}',
      {
        '13115': 'unit/scripting',
        '12472': 'unit/acl --only "/.*ACL GETUSER.*"',
        '12272': 'unit/type/string --only "/.*(GETRANGE|SETRANGE).*"',
        '11734': 'unit/bitops',
        '10764': 'unit/type/zset --only "BZMPOP"',
        '10095': 'unit/type/list --only "/.*(LPOP|RPOP)"',
        '9733': 'unit/introspection-2',
        '10068': 'unit/type/stream --only "/*XTRIM*"',
        '11631': 'unit/geo --only "/.*GEOSEARCH .*"',
        '11510': 'unit/introspection --only "/.*MONITOR.*"',
        '11279': 'unit/acl',
        '13338': 'unit/type/stream-cgroups',
      },
      ['make distclean', 'make'],
    ),
  },
  'jqlang/jq': {
    parser: 'parse_log_jq',
    commands: [
      {
        versions: '2839 2650 2235 2658 2750 2681 2919 2598 2728',
        build: [
          'git submodule update --init',
          'autoreconf -fi',
          './configure --with-oniguruma=builtin',
          'make clean',
          'touch src/parser.y src/lexer.l',
          'make -j$(nproc)',
        ],
        test: 'make check',
      },
    ],
  },
  'nlohmann/json': {
    parser: 'parse_log_doctest',
    commands: [
      {
        versions: '4237',
        build: ['mkdir -p build', 'cd build', 'cmake ..', 'make test-udt_cpp11', 'cd ..'],
        test: './build/tests/test-udt_cpp11 -s -r=xml',
      },
    ],
  },
  'micropython/micropython': {
    parser: 'parse_log_micropython_test',
    commands: [
      {
        versions: '15898',
        build: [
          'source ./tools/ci.sh',
          'ci_unix_build_helper VARIANT=standard',
          'gcc -shared -o tests/ports/unix/ffi_lib.so tests/ports/unix/ffi_lib.c',
        ],
        test: [
          'cd tests',
          'MICROPY_CPYTHON3=python3 MICROPY_MICROPYTHON=../ports/unix/build-standard/micropython ./run-tests.py -i string_format',
        ],
      },
      {
        versions: '13569',
        build: [
          'source ./tools/ci.sh',
          'ci_unix_build_helper VARIANT=standard',
          'gcc -shared -o tests/ports/unix/ffi_lib.so tests/ports/unix/ffi_lib.c',
        ],
        test: [
          'cd tests',
          'MICROPY_CPYTHON3=python3 MICROPY_MICROPYTHON=../ports/unix/build-standard/micropython ./run-tests.py -i try',
        ],
      },
      {
        versions: '13039',
        build: [
          'source ./tools/ci.sh',
          'ci_unix_build_helper VARIANT=standard',
          'gcc -shared -o tests/unix/ffi_lib.so tests/unix/ffi_lib.c',
        ],
        test: [
          'cd tests',
          'MICROPY_CPYTHON3=python3 MICROPY_MICROPYTHON=../ports/unix/build-standard/micropython ./run-tests.py -i slice',
        ],
      },
      {
        versions: '12158',
        build: [
          'source ./tools/ci.sh',
          'ci_unix_build_helper VARIANT=standard',
          'gcc -shared -o tests/unix/ffi_lib.so tests/unix/ffi_lib.c',
        ],
        test: [
          'cd tests',
          'MICROPY_CPYTHON3=python3 MICROPY_MICROPYTHON=../ports/unix/build-standard/micropython ./run-tests.py -d thread',
        ],
      },
      {
        versions: '10095',
        build: ['source ./tools/ci.sh', 'ci_unix_build_helper VARIANT=standard'],
        test: [
          'cd tests',
          'MICROPY_CPYTHON3=python3 MICROPY_MICROPYTHON=../ports/unix/build-standard/micropython ./run-tests.py -i basics/fun',
        ],
      },
    ],
  },
  'valkey-io/valkey': {
    parser: 'parse_log_redis',
    commands: forEach(
      'TERM=dumb ./runtest --durable --single {}',
      {
        '928': 'unit/cluster/replica-migration --only "/.*NOREPLICAS.*"',
        '790': 'unit/cluster/cluster-shards',
        '1499': 'unit/introspection-2',
        '1842': 'unit/acl --only "/.*ACL LOAD.*"',
      },
      ['make distclean', 'make'],
    ),
  },
  'fmtlib/fmt': {
    parser: 'parse_log_googletest',
    commands: [
      {
        versions: '3863 3158 2457',
        build: [
          'mkdir -p build',
          'cmake -B build -S .',
          'cmake --build build --parallel $(nproc) --target ranges-test',
        ],
        test: 'ctest --test-dir build -V -R ranges-test',
      },
      {
        versions: '3901 3750 3248 2317 2310',
        build: [
          'mkdir -p build',
          'cmake -B build -S .',
          'cmake --build build --parallel $(nproc) --target format-test',
        ],
        test: 'ctest --test-dir build -V -R format-test',
      },
      {
        versions: '3272',
        build: ['mkdir -p build', 'cmake -B build -S .', 'cmake --build build --parallel $(nproc) --target xchar-test'],
        test: 'ctest --test-dir build -V -R xchar-test',
      },
      {
        versions: '3729',
        build: ['mkdir -p build', 'cmake -B build -S .', 'cmake --build build --parallel $(nproc) --target std-test'],
        test: 'ctest --test-dir build -V -R std-test',
      },
      {
        versions: '1683',
        build: [
          'mkdir -p build',
          'cmake -B build -S .',
          'cmake --build build --parallel $(nproc) --target printf-test',
        ],
        test: 'ctest --test-dir build -V -R printf-test',
      },
    ],
  },
  'caddyserver/caddy': {
    parser: 'parse_log_gotest',
    commands: forEach('go test -v {}', {
      '6411': '. -run "TestReplacerNew*"',
      '6345': './caddytest/integration',
      '6115': './modules/caddyhttp/reverseproxy',
      '6051 5404': './caddyconfig/caddyfile',
      '6370': './cmd',
      '6350 6288 4774': './caddytest/integration -run "TestCaddyfileAdapt*"',
      '5995': './caddytest/integration -run "^TestUriReplace"',
      '4943': './modules/logging',
      '5626': './caddyconfig/httpcaddyfile -run "Test.*Import"',
      '5761': './caddyconfig/caddyfile -run "TestLexer.*"',
      '5870': '. -run "TestUnsyncedConfigAccess"',
    }),
  },
  'hashicorp/terraform': {
    parser: 'parse_log_gotest',
    commands: forEach('go test -v {}', {
      '35611': './internal/terraform -run "^TestContext2Apply_provisioner"',
      '35543': './internal/terraform -run "^TestContext2Plan_import"',
      '34900': './internal/terraform -run "(^TestContext2Apply|^TestContext2Plan).*[Ss]ensitive"',
      '34580': './internal/command -run "^TestFmt"',
      '34814': './internal/builtin/provisioners/remote-exec',
    }),
  },
  'prometheus/prometheus': {
    parser: 'parse_log_gotest',
    commands: forEach('go test -v {}"', {
      '14861': './promql -run "^TestEngine',
      '13845': './promql ./model/labels -run "^(TestRangeQuery|TestLabels)',
      '12874 15142': './tsdb -run "^TestHead',
      '11859': './tsdb -run "^TestSnapshot',
      '10720 9248': './promql -run "^TestEvaluations',
      '10633': './discovery/puppetdb -run "TestPuppetDBRefreshWithParameters',
    }),
  },
  'gohugoio/hugo': {
    parser: 'parse_log_gotest',
    commands: forEach('go test -v {}', {
      '12768': './markup/goldmark/blockquotes/...',
      '12579': './resources/page -run "^TestGroupBy"',
      '12562': './hugolib/... -run "^TestGetPage[^/]"',
      '12448': './hugolib/... -run "^TestRebuild"',
      '12343': './resources/page/... -run "^Test.*Permalink"',
      '12204': './tpl/tplimpl -run "^TestEmbedded"',
      '12171': './hugolib -run "^Test.*Pages"',
    }),
  },
  'gin-gonic/gin': {
    parser: 'parse_log_gotest',
    commands: forEach('go test {}"', {
      '4003': '. -v -run "TestMethodNotAllowedNoRoute',
      '3820': '-v ./binding -run "^TestMapping',
      '3741': '-v . -run "^TestColor',
      '2755': '-v . -run "^TestTree',
      '3227': '-v . -run "^TestRedirect',
      '2121': '-v ./... -run "^Test.*Reader',
      '1957': '-v . -run "^TestContext.*Bind',
      '1805': '-v . -run "^Test.*Router',
    }),
  },
  'burntsushi/ripgrep': {
    parser: 'parse_log_cargo',
    commands: [
      { versions: '2576', test: 'RUSTFLAGS=-Awarnings cargo test --package ripgrep --test integration -- regression' },
      {
        versions: '2209',
        test: 'RUSTFLAGS=-Awarnings cargo test --package ripgrep --test integration -- regression::r2208 --exact',
      },
    ],
  },
  'sharkdp/bat': {
    parser: 'parse_log_cargo',
    commands: forEach('RUSTFLAGS=-Awarnings cargo test --package bat --test integration_tests {}', {
      '3108 2201': 'pag',
      '2835': 'header',
      '2650': 'map_syntax',
      '2393': 'cache_',
      '2260': 'syntax',
      '1892': 'ignored_suffix_arg',
      '562': 'cache',
    }),
  },
  'astral-sh/ruff': {
    parser: 'parse_log_cargo',
    commands: forEach('cargo test --package ruff_linter {}', {
      '15626': '--lib rules::flake8_simplify::tests',
      '15543': '--lib rules::pyupgrade',
      '15443': '--lib rules::flake8_bandit',
      '15394': '--lib rules::flake8_pie',
      '15356': '--lib rules::pycodestyle',
      '15330': '--lib rules::eradicate',
      '15309': "'f52'",
    }),
  },
  'tokio-rs/tokio': {
    parser: 'parse_log_cargo',
    commands: [
      { versions: '6724', test: 'cargo test --test io_write_all_buf --no-fail-fast' },
      { versions: '6838', test: 'cargo test --test uds_stream --no-fail-fast' },
      { versions: '6752', test: 'cargo test --test time_delay_queue --no-fail-fast' },
      { versions: '4867', test: 'cargo test --test sync_broadcast --no-fail-fast' },
      { versions: '4898', test: 'RUSTFLAGS="--cfg tokio_unstable" cargo test --features full --test rt_metrics' },
      { versions: '6603', test: 'cargo test --test sync_mpsc --no-fail-fast' },
      {
        versions: '6551',
        test: 'RUSTFLAGS="--cfg tokio_unstable" cargo test --features full --test rt_metrics --no-fail-fast',
      },
      {
        versions: '4384',
        test: 'RUSTFLAGS=-Awarnings cargo test --package tokio --test net_types_unwind --features full --no-fail-fast',
      },
      { versions: '7139', test: 'RUSTFLAGS="--cfg tokio_unstable" cargo test --test fs_file --no-fail-fast' },
    ],
  },
  'uutils/coreutils': {
    parser: 'parse_log_cargo',
    commands: forEach('cargo test {}', {
      '6690':
        '--no-fail-fast -- test_cp_cp test_cp_same_file test_cp_multiple_files test_cp_single_file test_cp_no_file',
      '6731': 'backslash --no-fail-fast',
      '6575': 'cksum --no-fail-fast',
      '6682': 'mkdir --no-fail-fast',
      '6377': 'test_env --no-fail-fast',
    }),
  },
  'nushell/nushell': {
    parser: 'parse_log_cargo',
    commands: [
      { versions: '13246', build: ['cargo build'], test: 'cargo test -p nu-command --no-fail-fast --test main find::' },
      { versions: '12950', test: 'cargo test external_arguments --no-fail-fast' },
      { versions: '12901', test: 'cargo test --no-fail-fast shell::env' },
      { versions: '13831', build: ['cargo build'], test: 'cargo test -p nu-command --no-fail-fast split_column' },
      { versions: '13605', build: ['cargo build'], test: 'cargo test -p nu-command --no-fail-fast ls::' },
    ],
  },
  'tokio-rs/axum': {
    parser: 'parse_log_cargo',
    commands: forEach('RUSTFLAGS=-Awarnings cargo test --package axum --lib {}', {
      '2096 1934': '-- routing::tests::fallback',
      '1730': '-- routing::tests::mod state',
      '1119': 'slash',
      '734': '-- routing::tests::head',
      '691': '-- routing::tests::nest::nesting_router_at_root --exact',
      '682': 'trailing -- with_trailing_slash_post without_trailing_slash_post',
    }),
  },
};
