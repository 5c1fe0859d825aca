import { forEach, type Repositories } from './table.ts';

/** JavaScript and TypeScript repositories of SWE-bench Multimodal and Multilingual. Source: `swebench/harness/constants/` of swebench 4.1.0. */
export const JAVASCRIPT: Repositories = {
  'Automattic/wp-calypso': {
    parser: 'parse_log_calypso',
    appends: 'calypso',
    commands: [
      {
        versions:
          '0.8 4.2.3 4.3.0 5.10.1 5.11.1 6.1.0 6.7.0 6.9.0 6.9.1 6.9.4 6.10.0 6.10.2 6.10.3 6.11.1 6.11.2 6.11.5 8.9.1 8.9.3 8.9.4 8.11.0 8.11.2 10.4.1 10.5.0 10.6.0 10.9.0 10.10.0 10.12.0 10.13.0 10.14.0 10.15.2 10.16.3',
        test: 'npm run test-client',
      },
    ],
  },
  'chartjs/Chart.js': {
    parser: 'parse_log_chart_js',
    commands: [
      {
        versions: '4.0 4.1 4.2 4.3 4.4',
        test: [
          'pnpm install',
          'pnpm run build',
          'xvfb-run --server-args="-screen 0 1280x1024x24 -ac :99" su chromeuser -c "./node_modules/.bin/cross-env NODE_ENV=test ./node_modules/.bin/karma start ./karma.conf.cjs --single-run --coverage --grep --auto-watch false"',
        ],
      },
      {
        versions: '3.0 3.1 3.2 3.3 3.4 3.5 3.6 3.7 3.8',
        test: [
          'npm install',
          'npm run build',
          'xvfb-run --server-args="-screen 0 1280x1024x24 -ac :99" su chromeuser -c "./node_modules/.bin/cross-env NODE_ENV=test ./node_modules/.bin/karma start ./karma.conf.js --single-run --coverage --grep --auto-watch false"',
        ],
      },
      {
        versions: '2.0 2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9',
        test: [
          'npm install',
          'gulp build',
          'xvfb-run --server-args="-screen 0 1280x1024x24 -ac :99" su chromeuser -c "gulp test"',
        ],
      },
    ],
  },
  'markedjs/marked': {
    parser: 'parse_log_marked',
    commands: [
      {
        versions: '0.3 0.5 0.6 0.7 1.0 1.1 1.2 2.0 3.9 4.0 4.1 5.0',
        test: './node_modules/.bin/jasmine --no-color --config=jasmine.json',
      },
    ],
  },
  'processing/p5.js': {
    parser: 'parse_log_p5js',
    commands: [
      {
        versions: '0.10 0.2 0.4 0.5 0.6 0.7 0.8 0.9 1.0 1.1 1.2 1.3 1.4 1.5 1.6 1.7 1.8 1.9',
        test: `sed -i 's/concurrency:[[:space:]]*[0-9][0-9]*/concurrency: 1/g' Gruntfile.js
stdbuf -o 1M ./node_modules/.bin/grunt test --quiet --force`,
      },
    ],
  },
  'diegomura/react-pdf': {
    parser: 'parse_log_react_pdf',
    commands: [
      { versions: '1.0 1.1 1.2', test: './node_modules/.bin/jest --no-color' },
      { versions: '2.0', test: 'NODE_OPTIONS="--experimental-vm-modules" ./node_modules/.bin/jest --no-color' },
    ],
  },
  'babel/babel': {
    parser: 'parse_log_jest',
    commands: forEach(
      'yarn jest {} --verbose',
      {
        '14532': 'babel-generator',
        '13928': 'babel-parser -t "arrow"',
        '15649': 'packages/babel-traverse/test/scope.js',
        '15445': 'packages/babel-generator/test/index.js -t "generation "',
        '16130': 'babel-helpers',
      },
      ['make build'],
    ),
  },
  'vuejs/core': {
    parser: 'parse_log_vitest',
    commands: [
      {
        versions: '11899',
        build: ['pnpm run build compiler-sfc'],
        test: 'pnpm run test packages/compiler-sfc/__tests__/compileStyle.spec.ts --no-watch --reporter=verbose',
      },
      {
        versions: '11870',
        test: 'pnpm run test packages/runtime-core/__tests__/helpers/renderList.spec.ts --no-watch --reporter=verbose',
      },
      {
        versions: '11739',
        test: 'pnpm run test packages/runtime-core/__tests__/hydration.spec.ts --no-watch --reporter=verbose -t "mismatch handling"',
      },
      {
        versions: '11915',
        test: 'pnpm run test packages/compiler-core/__tests__/parse.spec.ts --no-watch --reporter=verbose -t "Element"',
      },
      {
        versions: '11589',
        test: 'pnpm run test packages/runtime-core/__tests__/apiWatch.spec.ts --no-watch --reporter=verbose',
      },
    ],
  },
  'facebook/docusaurus': {
    parser: 'parse_log_jest',
    commands: forEach('yarn test {} --verbose', {
      '10309': 'packages/docusaurus-plugin-content-docs/src/client/__tests__/docsClientUtils.test.ts',
      '10130': 'packages/docusaurus/src/server/__tests__/brokenLinks.test.ts',
      '9897': 'packages/docusaurus-utils/src/__tests__/markdownUtils.test.ts',
      '9183': 'packages/docusaurus-theme-classic/src/__tests__/options.test.ts',
      '8927': 'packages/docusaurus-utils/src/__tests__/markdownLinks.test.ts',
    }),
  },
  'immutable-js/immutable-js': {
    parser: 'parse_log_immutable_js',
    commands: [
      { versions: '2006', build: ['npm run build'], test: 'npx jest __tests__/Range.ts --verbose' },
      {
        versions: '2005',
        build: ['npm run build'],
        test: `npx jest __tests__/OrderedMap.ts __tests__/OrderedSet.ts --silent --json | jq -r '.testResults[].assertionResults[] | "[" + (.status | ascii_upcase) + "] " + ((.ancestorTitles | join(" > ")) + (if .ancestorTitles | length > 0 then " > " else "" end) + .title)'`,
      },
    ],
  },
  'mrdoob/three.js': {
    parser: 'parse_log_tap',
    commands: forEach('npx qunit {}', {
      '27395': 'test/unit/src/math/Sphere.tests.js',
      '26589':
        'test/unit/src/objects/Line.tests.js test/unit/src/objects/Mesh.tests.js test/unit/src/objects/Points.tests.js',
      '25687': 'test/unit/src/core/Object3D.tests.js -f "/json|clone|copy/i"',
    }),
  },
  'preactjs/preact': {
    parser: 'parse_log_karma',
    commands: forEach('COVERAGE=false BABEL_NO_MODULES=true npx karma start karma.conf.js --single-run --grep="{}"', {
      '4152': 'test/browser/components.test.js',
      '4316': 'test/browser/events.test.js',
      '4245': 'hooks/test/browser/useId.test.js',
      '4182 3689': 'hooks/test/browser/errorBoundary.test.js',
      '4436': 'test/browser/refs.test.js',
      '3763': 'test/browser/lifecycles/componentDidMount.test.js',
      '3739': 'hooks/test/browser/useState.test.js',
      '3567 3345': 'hooks/test/browser/useEffect.test.js',
      '3562': 'compat/test/browser/render.test.js',
      '3454': 'test/browser/svg.test.js',
      '3062 3010 2927 2757': 'test/browser/render.test.js',
      '2896': 'compat/test/browser/memo.test.js',
    }),
  },
  'axios/axios': {
    parser: 'parse_log_tap',
    commands: [
      { versions: '5892', test: "npx mocha test/unit/adapters/http.js -R tap -g 'compression'" },
      { versions: '5316', build: ['npm install'], test: "npx mocha test/unit/adapters/http.js -R tap -g 'FormData'" },
      { versions: '4738', test: "timeout 10s npx mocha -R tap test/unit/adapters/http.js -g 'timeout'" },
      { versions: '4731', test: "npx mocha -R tap test/unit/adapters/http.js -g 'body length'" },
      { versions: '6539', test: 'npx mocha -R tap test/unit/regression/SNYK-JS-AXIOS-7361793.js' },
      { versions: '5085', test: 'npx mocha -R tap test/unit/regression/bugs.js' },
    ],
  },
};
