import { forEach, type Repositories } from './table.ts';

/** PHP and Ruby repositories of SWE-bench Multilingual. Source: `swebench/harness/constants/` of swebench 4.1.0. */
export const PHP_RUBY: Repositories = {
  'phpoffice/phpspreadsheet': {
    parser: 'parse_log_phpunit',
    commands: forEach('./vendor/bin/phpunit --testdox --colors=never {}', {
      '4313': 'tests/PhpSpreadsheetTests/Reader/Ods/FormulaTranslatorTest.php',
      '4214': 'tests/PhpSpreadsheetTests/Calculation/Functions/MathTrig/RoundDownTest.php',
      '4186 3463': 'tests/PhpSpreadsheetTests/Writer/Xlsx/FunctionPrefixTest.php',
      '4114': 'tests/PhpSpreadsheetTests/Worksheet/Issue4112Test.php',
      '3940': 'tests/PhpSpreadsheetTests/Worksheet/WorksheetTest.php',
      '3903': 'tests/PhpSpreadsheetTests/Shared/StringHelperTest.php',
      '3570': 'tests/PhpSpreadsheetTests/Calculation/Functions/LookupRef/VLookupTest.php',
      '3469': 'tests/PhpSpreadsheetTests/Style/StyleTest.php',
      '3659': 'tests/PhpSpreadsheetTests/Worksheet/Table/Issue3635Test.php',
    }),
  },
  'laravel/framework': {
    parser: 'parse_log_phpunit',
    commands: forEach('vendor/bin/phpunit --testdox --colors=never {}', {
      '53914': 'tests/Integration/Database/DatabaseConnectionsTest.php',
      '53206': 'tests/Support/SupportJsTest.php',
      '52866': 'tests/Container/ContextualAttributeBindingTest.php',
      '52684': 'tests/Support/SupportStrTest.php',
      '52680': 'tests/Database/DatabaseEloquentInverseRelationTest.php',
      '52451': "tests/Validation/ValidationValidatorTest.php --filter 'custom'",
      '53949': 'tests/Support/OnceTest.php',
      '51890': "tests/Validation/ValidationValidatorTest.php --filter 'attribute'",
      '51195': 'tests/View/Blade/BladeVerbatimTest.php',
      '48636': 'tests/Database/DatabaseEloquentModelTest.php',
      '48573': 'tests/Cache/CacheArrayStoreTest.php',
      '46234': 'tests/Routing/RoutingUrlGeneratorTest.php',
      '53696': 'tests/Database/DatabaseSchemaBlueprintTest.php',
    }),
  },
  'php-cs-fixer/php-cs-fixer': {
    parser: 'parse_log_phpunit',
    commands: forEach('vendor/bin/phpunit --testdox --colors=never {}', {
      '8367 7635': 'tests/Fixer/Import/FullyQualifiedStrictTypesFixerTest.php',
      '8331': 'tests/Fixer/LanguageConstruct/NullableTypeDeclarationFixerTest.php',
      '8075': 'tests/Fixer/PhpUnit/PhpUnitAttributesFixerTest.php',
      '8064': 'tests/Fixer/StringNotation/SimpleToComplexStringVariableFixerTest.php',
      '7998': 'tests/Fixer/Casing/ConstantCaseFixerTest.php',
      '7875 7663': 'tests/Fixer/Whitespace/StatementIndentationFixerTest.php',
      '7523': 'tests/Fixer/Operator/BinaryOperatorSpacesFixerTest.php',
      '8256': 'tests/Fixer/PhpTag/BlankLineAfterOpeningTagFixerTest.php',
    }),
  },
  'briannesbitt/carbon': {
    parser: 'parse_log_phpunit',
    commands: [
      { versions: '3103', test: 'vendor/bin/phpunit --testdox --colors=never tests/CarbonImmutable/SettersTest.php' },
      {
        versions: '3098 3005',
        test: 'vendor/bin/phpunit --testdox --colors=never tests/CarbonInterval/ConstructTest.php',
      },
      { versions: '3073 2981', test: 'vendor/bin/phpunit --testdox --colors=never tests/CarbonInterval/TotalTest.php' },
      { versions: '3041', test: 'vendor/bin/phpunit --testdox --colors=never tests/CarbonPeriod/CreateTest.php' },
      {
        versions: '2813',
        build: ['composer update', 'composer install'],
        test: 'vendor/bin/phpunit --testdox --colors=never tests/Factory/FactoryTest.php',
      },
      { versions: '2752', test: 'vendor/bin/phpunit --testdox --colors=never tests/CarbonImmutable/IsTest.php' },
      { versions: '2665', test: 'vendor/bin/phpunit --testdox --colors=never tests/Carbon/RoundTest.php' },
      { versions: '2762', test: 'vendor/bin/phpunit --testdox --colors=never tests/CarbonInterval/RoundingTest.php' },
    ],
  },
  'jekyll/jekyll': {
    parser: 'parse_log_jekyll',
    commands: forEach('bundle exec {}', {
      '9141': 'ruby -I test test/test_site.rb -v -n "/static files/"',
      '8761':
        'cucumber --publish-quiet --format progress --no-color features/post_data.feature:6 features/post_data.feature:30',
      '8047': 'ruby -I test test/test_filters.rb -v -n "/where_exp filter/"',
      '8167': 'ruby -I test test/test_utils.rb -v -n "/Utils.slugify/"',
      '8771':
        'cucumber --publish-quiet --format progress --no-color features/incremental_rebuild.feature:27 features/incremental_rebuild.feature:70',
    }),
  },
  'fluent/fluentd': {
    parser: 'parse_log_ruby_unit',
    commands: forEach('bundle exec ruby {}', {
      '4598': "test/plugin_helper/test_http_server_helper.rb -v -n '/mount/'",
      '4311': "test/config/test_system_config.rb -v -n '/rotate_age/'",
      '4655': "test/plugin/test_in_http.rb -v -n '/test_add/'",
      '4030': 'test/plugin/out_forward/test_ack_handler.rb -v',
      '3917': 'test/test_config.rb -v',
      '3640': "test/plugin_helper/test_retry_state.rb -v -n '/exponential backoff/'",
      '3641': 'test/test_supervisor.rb -v',
      '3616': "test/plugin/test_in_http.rb -v -n '/test_application/'",
      '3631': "test/test_event_router.rb -v -n '/handle_emits_error/'",
      '3466': "test/plugin/test_in_tail.rb -v -n '/test_should_replace_target_info/'",
      '3328': "test/plugin/test_in_tail.rb -v -n '/test_ENOENT_error_after_setup_watcher/'",
      '3608': "test/plugin/test_output_as_buffered_retries.rb -v -n '/retry_max_times/'",
    }),
  },
  'fastlane/fastlane': {
    parser: 'parse_log_rspec_transformed_json',
    commands: forEach(
      `FASTLANE_SKIP_UPDATE_CHECK=1 bundle exec rspec {} --no-color --format json | tail -n +2 | jq -r '.examples[] | "\\(.description) - \\(.id) - \\(.status)"'`,
      {
        '21857': './fastlane/spec/lane_manager_base_spec.rb',
        '20958': './fastlane/spec/actions_specs/import_from_git_spec.rb',
        '20642': './frameit/spec/device_spec.rb',
        '19765': './fastlane/spec/actions_specs/download_dsyms_spec.rb',
        '20975': './match/spec/storage/s3_storage_spec.rb',
        '19304 19207': './fastlane/spec/actions_specs/zip_spec.rb',
      },
    ),
  },
  'jordansissel/fpm': {
    parser: 'parse_log_rspec_transformed_json',
    commands: [
      {
        versions: '1850',
        test: `bundle exec rspec spec/fpm/package/empty_spec.rb --no-color --format json | sed -n '/^{/,$p' | jq -r '.examples[] | "\\(.description) - \\(.status)"'`,
      },
      {
        versions: '1829',
        test: `bundle exec rspec spec/fpm/package/deb_spec.rb --no-color --format json | sed -n '/^{/,$p' | jq -r '.examples[] | "\\(.description) - \\(.status)"'`,
      },
    ],
  },
  'faker-ruby/faker': {
    parser: 'parse_log_ruby_unit',
    commands: [
      { versions: '2970', test: "bundle exec ruby test/faker/default/test_faker_internet.rb -v -n '/email/'" },
      { versions: '2705', test: "bundle exec ruby test/faker/default/test_faker_internet.rb -v -n '/password/'" },
    ],
  },
  'rubocop/rubocop': {
    parser: 'parse_log_rspec_transformed_json',
    commands: forEach(
      `bundle exec rspec {} --no-color --format json | sed -n '/^{/,$p' | \\
  jq -r '.examples | group_by(.description) | .[] |
    if any(select(.status == "failed")) then
      (.[0] | "\\(.description) - failed")
    else
      (.[0] | "\\(.description) - \\(.status)")
    end'`,
      {
        '13705': 'spec/rubocop/cop/lint/out_of_range_regexp_ref_spec.rb',
        '13687': 'spec/rubocop/cop/lint/safe_navigation_chain_spec.rb',
        '13680': 'spec/rubocop/cop/style/redundant_line_continuation_spec.rb',
        '13668': 'spec/rubocop/cop/style/sole_nested_conditional_spec.rb',
        '13627': 'spec/rubocop/cop/style/multiple_comparison_spec.rb',
        '13653': 'spec/rubocop/cop/style/access_modifier_declarations_spec.rb',
        '13579': 'spec/rubocop/cop/layout/line_continuation_spacing_spec.rb',
        '13560': 'spec/rubocop/cop/style/file_null_spec.rb',
        '13503': 'spec/rubocop/cop/style/dig_chain_spec.rb',
        '13479': 'spec/rubocop/cop/layout/leading_comment_space_spec.rb',
        '13431': 'spec/rubocop/cop/layout/empty_lines_around_method_body_spec.rb',
        '13424': 'spec/rubocop/cop/style/safe_navigation_spec.rb',
        '13393': 'spec/rubocop/cop/style/guard_clause_spec.rb',
        '13396': 'spec/rubocop/cop/style/redundant_parentheses_spec.rb',
        '13375': 'spec/rubocop/cli_spec.rb',
        '13362': 'spec/rubocop/cop/style/redundant_freeze_spec.rb',
      },
    ),
  },
};
