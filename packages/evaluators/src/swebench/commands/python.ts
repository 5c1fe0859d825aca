import type { Repositories } from './table.ts';

const PYTEST = 'pytest -rA';
const INSTALL = ['python -m pip install -e .'];

/** Python repositories of SWE-bench. Source: `swebench/harness/constants/` of swebench 4.1.0. */
export const PYTHON: Repositories = {
  'astropy/astropy': {
    parser: 'parse_log_astropy',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions: '3.0 3.1 3.2 4.1 4.2 4.3 5.0 5.1 5.2 v5.3',
        setup: ['python -m pip install -e .[test] --verbose'],
        test: PYTEST,
      },
      {
        versions: '0.1 0.2 0.3 0.4 1.1 1.2 1.3',
        setup: ['python -m pip install -e .[test] --verbose'],
        test: 'pytest -rA -vv -o console_output_style=classic --tb=no',
      },
    ],
  },
  'django/django': {
    parser: 'parse_log_django',
    conda: true,
    appends: 'modules',
    commands: [
      {
        versions: '1.7 1.8 1.10 1.11 2.0 2.1 2.2',
        setup: [
          'export LANG=en_US.UTF-8',
          'export LC_ALL=en_US.UTF-8',
          'export PYTHONIOENCODING=utf8',
          'export LANGUAGE=en_US:en',
          'python setup.py install',
        ],
        test: './tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1',
      },
      {
        versions: '1.9',
        setup: [
          'export LANG=en_US.UTF-8',
          'export LC_ALL=en_US.UTF-8',
          'export PYTHONIOENCODING=utf8',
          'export LANGUAGE=en_US:en',
          'python setup.py install',
        ],
        test: './tests/runtests.py --verbosity 2',
      },
      {
        versions: '1.4 1.5 1.6',
        setup: ['python setup.py install'],
        test: './tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1',
      },
      {
        versions: '3.0 3.1 3.2',
        setup: [
          "sed -i '/en_US.UTF-8/s/^# //g' /etc/locale.gen && locale-gen",
          'export LANG=en_US.UTF-8',
          'export LANGUAGE=en_US:en',
          'export LC_ALL=en_US.UTF-8',
          'python -m pip install -e .',
        ],
        test: './tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1',
      },
      {
        versions: '4.0 4.1 4.2 5.0 5.1 5.2',
        setup: INSTALL,
        test: './tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1',
      },
    ],
  },
  'matplotlib/matplotlib': {
    parser: 'parse_log_matplotlib',
    conda: true,
    appends: 'files',
    commands: [
      { versions: '3.5 3.6 3.7 3.1 3.2 3.3 3.4 3.0', setup: INSTALL, test: PYTEST },
      { versions: '3.8 3.9', setup: ['python -m pip install --no-build-isolation -e ".[dev]"'], test: PYTEST },
      {
        versions: '2.0 2.1 2.2 1.0 1.1 1.2 1.3 1.4 1.5',
        setup: ['python setup.py build; python setup.py install'],
        test: PYTEST,
      },
    ],
  },
  'marshmallow-code/marshmallow': {
    parser: 'parse_log_marshmallow',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions: '2.18 2.19 2.20 3.0 3.1 3.10 3.11 3.12 3.13 3.15 3.16 3.19 3.2 3.4 3.8 3.9',
        setup: ["python -m pip install -e '.[dev]'"],
        test: PYTEST,
      },
    ],
  },
  'mwaskom/seaborn': {
    parser: 'parse_log_seaborn',
    conda: true,
    appends: 'files',
    commands: [
      { versions: '0.11', setup: INSTALL, test: 'pytest --no-header -rA' },
      { versions: '0.12 0.13 0.14', setup: ['python -m pip install -e .[dev]'], test: 'pytest --no-header -rA' },
    ],
  },
  'pallets/flask': {
    parser: 'parse_log_flask',
    conda: true,
    appends: 'files',
    commands: [{ versions: '2.0 2.1 2.2 2.3 3.0 3.1', setup: INSTALL, test: PYTEST }],
  },
  'psf/requests': {
    parser: 'parse_log_requests',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions:
          '0.7 0.8 0.9 0.11 0.13 0.14 1.1 1.2 2.0 2.2 2.3 2.4 2.5 2.7 2.8 2.9 2.10 2.11 2.12 2.17 2.18 2.19 2.22 2.26 2.25 2.27 2.31 3.0',
        setup: ['python -m pip install .'],
        test: PYTEST,
      },
    ],
  },
  'pvlib/pvlib-python': {
    parser: 'parse_log_pvlib',
    conda: true,
    appends: 'files',
    commands: [
      { versions: '0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9', setup: ['python -m pip install -e .[all]'], test: PYTEST },
    ],
  },
  'pydata/xarray': {
    parser: 'parse_log_xarray',
    conda: true,
    appends: 'files',
    commands: [
      { versions: '0.12 0.18 0.19 0.20 2022.03 2022.06 2022.09 2023.07 2024.05', setup: INSTALL, test: PYTEST },
    ],
  },
  'pydicom/pydicom': {
    parser: 'parse_log_pydicom',
    conda: true,
    appends: 'files',
    commands: [{ versions: '1.0 1.1 1.2 1.3 1.4 2.0 2.1 2.2 2.3 2.4 3.0', setup: INSTALL, test: PYTEST }],
  },
  'pylint-dev/astroid': {
    parser: 'parse_log_astroid',
    conda: true,
    appends: 'files',
    commands: [{ versions: '2.10 2.12 2.13 2.14 2.15 2.16 2.5 2.6 2.7 2.8 2.9 3.0', setup: INSTALL, test: PYTEST }],
  },
  'pylint-dev/pylint': {
    parser: 'parse_log_pylint',
    conda: true,
    appends: 'files',
    commands: [
      { versions: '2.10 2.11 2.13 2.14 2.15 2.16 2.17 2.8 2.9 3.0 3.1 3.2 3.3 4.0', setup: INSTALL, test: PYTEST },
    ],
  },
  'pytest-dev/pytest': {
    parser: 'parse_log_pytest',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions: '4.4 4.5 4.6 5.0 5.1 5.2 5.3 5.4 6.0 6.2 6.3 7.0 7.1 7.2 7.4 8.0 8.1 8.2 8.3 8.4',
        setup: INSTALL,
        test: PYTEST,
      },
    ],
  },
  'pyvista/pyvista': {
    parser: 'parse_log_pyvista',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions:
          '0.20 0.21 0.22 0.23 0.24 0.25 0.26 0.27 0.28 0.29 0.30 0.31 0.32 0.33 0.34 0.35 0.36 0.37 0.38 0.39 0.40 0.41 0.42 0.43',
        setup: INSTALL,
        test: PYTEST,
      },
    ],
  },
  'scikit-learn/scikit-learn': {
    parser: 'parse_log_scikit',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions: '0.20 0.21 0.22 1.3 1.4 1.5 1.6',
        setup: ['python -m pip install -v --no-use-pep517 --no-build-isolation -e .'],
        test: PYTEST,
      },
    ],
  },
  'sphinx-doc/sphinx': {
    parser: 'parse_log_sphinx',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions:
          '1.5 1.6 1.7 1.8 2.0 2.1 2.2 2.3 2.4 3.0 3.1 3.2 3.3 3.4 3.5 4.0 4.1 4.2 4.3 4.4 4.5 5.0 5.1 5.2 5.3 6.0 6.2 7.0 7.1 7.2 7.3 7.4 8.0 8.1',
        setup: ['python -m pip install -e .[test]'],
        test: 'tox --current-env -epy39 -v --',
      },
    ],
  },
  'sqlfluff/sqlfluff': {
    parser: 'parse_log_sqlfluff',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions: '0.10 0.11 0.12 0.13 0.4 0.5 0.6 0.8 0.9 1.0 1.1 1.2 1.3 1.4 2.0 2.1 2.2',
        setup: INSTALL,
        test: PYTEST,
      },
    ],
  },
  'sympy/sympy': {
    parser: 'parse_log_sympy',
    conda: true,
    appends: 'files',
    commands: [
      {
        versions: '0.7 1.0 1.1 1.10 1.11 1.12 1.2 1.4 1.5 1.6 1.7 1.8 1.9 1.13 1.14',
        setup: INSTALL,
        test: "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
      },
    ],
  },
};
