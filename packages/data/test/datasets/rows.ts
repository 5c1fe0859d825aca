/** A row of SWE-bench with small patches. */
export const SWE_BENCH_ROW = {
  instance_id: 'django__django-11099',
  repo: 'django/django',
  version: '3.0',
  base_commit: 'd26b2424437dabeeca94d7900b37d2df4410da0c',
  patch: 'diff --git a/x b/x\n',
  test_patch: 'diff --git a/tests/auth_tests/test_validators.py b/tests/auth_tests/test_validators.py\n',
  problem_statement: 'Usernames may end with a line break.',
  hints_text: '',
  created_at: '2019-03-20',
  environment_setup_commit: '419a78300f7cd27611196e1e464d50fd0385ff27',
  difficulty: '<15 min fix',
  FAIL_TO_PASS: '["test_ascii_validator (auth_tests.test_validators.UsernameValidatorsTests)"]',
  PASS_TO_PASS: '[]',
};

export const SWE_GYM_ROW = {
  ...SWE_BENCH_ROW,
  instance_id: 'getmoto__moto-7365',
  repo: 'getmoto/moto',
  version: '5.0',
  FAIL_TO_PASS: ['tests/test_dynamodb/test_add.py::test_update'],
  PASS_TO_PASS: [],
};

export const R2E_GYM_ROW = {
  repo_name: 'orange3',
  docker_image: 'namanjain12/orange3_final:2d9617bd',
  commit_hash: '2d9617bd',
  problem_statement: 'A widget crashes.',
  parsed_commit_content: '{}',
  expected_output_json: '{"test_a": "PASSED"}',
};
