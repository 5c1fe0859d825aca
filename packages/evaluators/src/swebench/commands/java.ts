import { allOf, forEach, type Repositories } from './table.ts';

/** Java repositories of SWE-bench Multilingual. Source: `swebench/harness/constants/` of swebench 4.1.0. */
export const JAVA: Repositories = {
  'google/gson': {
    parser: 'parse_log_maven',
    commands: [
      {
        versions: '2158',
        test: allOf('mvnd test -B -T 1C -pl gson -Dtest={}', [
          'com.google.gson.functional.PrimitiveTest#testByteSerialization',
          'com.google.gson.functional.PrimitiveTest#testShortSerialization',
          'com.google.gson.functional.PrimitiveTest#testIntSerialization',
          'com.google.gson.functional.PrimitiveTest#testLongSerialization',
          'com.google.gson.functional.PrimitiveTest#testFloatSerialization',
          'com.google.gson.functional.PrimitiveTest#testDoubleSerialization',
          'com.google.gson.functional.PrimitiveTest#testPrimitiveIntegerAutoboxedSerialization',
          'com.google.gson.functional.PrimitiveTest#testPrimitiveIntegerAutoboxedInASingleElementArraySerialization',
          'com.google.gson.functional.PrimitiveTest#testReallyLongValuesSerialization',
          'com.google.gson.functional.PrimitiveTest#testPrimitiveLongAutoboxedSerialization',
        ]),
      },
      {
        versions: '2024',
        test: allOf('mvnd test -B -T 1C -pl gson -Dtest={}', [
          'com.google.gson.functional.FieldNamingTest#testUpperCaseWithUnderscores',
          'com.google.gson.functional.NamingPolicyTest#testGsonWithUpperCaseUnderscorePolicySerialization',
          'com.google.gson.functional.NamingPolicyTest#testGsonWithUpperCaseUnderscorePolicyDeserialiation',
        ]),
      },
      {
        versions: '2479',
        test: allOf('mvnd test -B -T 1C -pl gson -Dtest={}', [
          'com.google.gson.GsonBuilderTest#testRegisterTypeAdapterForObjectAndJsonElements',
          'com.google.gson.GsonBuilderTest#testRegisterTypeHierarchyAdapterJsonElements',
          'com.google.gson.GsonBuilderTest#testModificationAfterCreate',
        ]),
      },
      {
        versions: '2134',
        test: allOf('mvnd test -B -T 1C -pl gson -Dtest={}', [
          'com.google.gson.internal.bind.util.ISO8601UtilsTest#testDateParseInvalidDay',
          'com.google.gson.internal.bind.util.ISO8601UtilsTest#testDateParseInvalidMonth',
          'com.google.gson.internal.bind.util.ISO8601UtilsTest#testDateParseWithDefaultTimezone',
        ]),
      },
      {
        versions: '2061',
        test: allOf('mvnd test -B -T 1C -pl gson -Dtest={}', [
          'com.google.gson.stream.JsonReaderTest#testHasNextEndOfDocument',
          'com.google.gson.internal.bind.JsonTreeReaderTest#testHasNext_endOfDocument',
          'com.google.gson.stream.JsonReaderTest#testReadEmptyObject',
          'com.google.gson.stream.JsonReaderTest#testReadEmptyArray',
          'com.google.gson.internal.bind.JsonTreeReaderTest#testSkipValue_emptyJsonObject',
          'com.google.gson.internal.bind.JsonTreeReaderTest#testSkipValue_filledJsonObject',
        ]),
      },
      {
        versions: '2311',
        test: allOf('mvnd test -B -T 1C -pl gson -Dtest={}', [
          'com.google.gson.JsonPrimitiveTest#testEqualsIntegerAndBigInteger',
          'com.google.gson.JsonPrimitiveTest#testLongEqualsBigInteger',
          'com.google.gson.JsonPrimitiveTest#testEqualsAcrossTypes',
        ]),
      },
      {
        versions: '1100',
        test: allOf('mvnd test -B -T 1C -pl gson -Dtest={}', [
          'com.google.gson.DefaultDateTypeAdapterTest#testNullValue',
          'com.google.gson.DefaultDateTypeAdapterTest#testDatePattern',
          'com.google.gson.DefaultDateTypeAdapterTest#testInvalidDatePattern',
        ]),
      },
      {
        versions: '1093',
        test: allOf('mvnd test -B -T 1C -pl gson -Dtest={}', [
          'com.google.gson.stream.JsonWriterTest#testNonFiniteDoublesWhenLenient',
          'com.google.gson.stream.JsonWriterTest#testNonFiniteBoxedDoublesWhenLenient',
          'com.google.gson.stream.JsonWriterTest#testNonFiniteDoubles',
          'com.google.gson.stream.JsonWriterTest#testNonFiniteBoxedDoubles',
          'com.google.gson.stream.JsonWriterTest#testDoubles',
        ]),
      },
      {
        versions: '1014',
        test: [
          'mvnd test -B -T 1C -pl gson -Dtest=com.google.gson.internal.bind.JsonTreeReaderTest#testSkipValue_emptyJsonObject',
          'mvnd test -B -T 1C -pl gson -Dtest=com.google.gson.internal.bind.JsonTreeReaderTest#testSkipValue_filledJsonObject',
        ],
      },
    ],
  },
  'apache/druid': {
    parser: 'parse_log_maven',
    commands: [
      {
        versions: '15402',
        test: allOf('mvnd test -B -T 1C -pl processing -Dtest={}', [
          'org.apache.druid.query.groupby.GroupByQueryQueryToolChestTest#testCacheStrategy',
          'org.apache.druid.query.groupby.GroupByQueryQueryToolChestTest#testResultLevelCacheKeyWithSubTotalsSpec',
          'org.apache.druid.query.groupby.GroupByQueryQueryToolChestTest#testMultiColumnCacheStrategy',
        ]),
      },
      {
        versions: '14092',
        test: [
          'mvnd test -B -T 1C -pl server -Dtest=org.apache.druid.discovery.DruidLeaderClientTest#test503ResponseFromServerAndCacheRefresh',
          'mvnd test -B -T 1C -pl server -Dtest=org.apache.druid.discovery.DruidLeaderClientTest#testServerFailureAndRedirect',
        ],
      },
      {
        versions: '14136',
        test: allOf('mvnd test -B -T 1C -pl processing -Dtest={}', [
          'org.apache.druid.timeline.VersionedIntervalTimelineTest#testOverlapSecondContainsFirstZeroLengthInterval',
          'org.apache.druid.timeline.VersionedIntervalTimelineTest#testOverlapSecondContainsFirstZeroLengthInterval2',
          'org.apache.druid.timeline.VersionedIntervalTimelineTest#testOverlapSecondContainsFirstZeroLengthInterval3',
          'org.apache.druid.timeline.VersionedIntervalTimelineTest#testOverlapSecondContainsFirstZeroLengthInterval4',
          'org.apache.druid.timeline.VersionedIntervalTimelineTest#testOverlapFirstContainsSecond',
          'org.apache.druid.timeline.VersionedIntervalTimelineTest#testOverlapSecondContainsFirst',
        ]),
      },
      {
        versions: '13704',
        test: allOf('mvnd test -B -pl processing -Dtest={}', [
          'org.apache.druid.query.aggregation.post.ArithmeticPostAggregatorTest#testPow',
          'org.apache.druid.query.aggregation.post.ArithmeticPostAggregatorTest#testDiv',
          'org.apache.druid.query.aggregation.post.ArithmeticPostAggregatorTest#testQuotient',
        ]),
      },
      {
        versions: '16875',
        test: allOf('mvnd test -B -pl server -Dtest={}', [
          'org.apache.druid.server.metrics.WorkerTaskCountStatsMonitorTest#testMonitorWithPeon',
          'org.apache.druid.server.metrics.WorkerTaskCountStatsMonitorTest#testMonitorWithNulls',
          'org.apache.druid.server.metrics.WorkerTaskCountStatsMonitorTest#testMonitorIndexer',
        ]),
      },
    ],
  },
  'javaparser/javaparser': {
    parser: 'parse_log_maven',
    commands: [
      {
        versions: '4561',
        build: ['./mvnw clean install -B -pl javaparser-symbol-solver-testing -DskipTests -am'],
        test: [
          './mvnw test -B -pl javaparser-symbol-solver-testing -Dtest=Issue4560Test',
          './mvnw test -B -pl javaparser-symbol-solver-testing -Dtest=JavaSymbolSolverTest',
        ],
      },
      {
        versions: '4538',
        build: ['./mvnw clean install -B -pl javaparser-core-testing -DskipTests -am'],
        test: [
          './mvnw test -B -pl javaparser-core-testing -Dtest=NodeTest',
          './mvnw test -B -pl javaparser-core-testing -Dtest=NodePositionTest',
        ],
      },
    ],
  },
  'projectlombok/lombok': {
    parser: 'parse_log_ant',
    commands: [
      {
        versions: '3602 3312 3697 3326 3674 3594 3422 3215 3486 3042 3052 2792 3571 3479 3371 3350 3009',
        build: ['ant test.compile'],
        test: 'ant test.instance',
      },
    ],
  },
  'apache/lucene': {
    parser: 'parse_log_gradle_custom',
    commands: forEach('./gradlew test --tests {}', {
      '13494': 'org.apache.lucene.facet.TestStringValueFacetCounts',
      '13704': 'org.apache.lucene.search.TestLatLonDocValuesQueries',
      '13301':
        'TestXYPoint.testEqualsAndHashCode -Dtests.seed=3ABEFE4D876DD310 -Dtests.nightly=true -Dtests.locale=es-419 -Dtests.timezone=Asia/Ulaanbaatar -Dtests.asserts=true -Dtests.file.encoding=UTF-8',
      '12626': 'org.apache.lucene.index.TestIndexWriter',
      '12212': 'org.apache.lucene.facet.TestDrillSideways',
      '13170': 'org.apache.lucene.analysis.opennlp.TestOpenNLPSentenceBreakIterator',
      '12196': 'org.apache.lucene.queryparser.classic.TestMultiFieldQueryParser',
      '12022': 'org.apache.lucene.document.TestLatLonShape',
      '11760': 'org.apache.lucene.queries.intervals.TestIntervalBuilder',
    }),
  },
  'reactivex/rxjava': {
    parser: 'parse_log_gradle_custom',
    commands: [
      {
        versions: '7597',
        test: './gradlew test --tests io.reactivex.rxjava3.internal.operators.observable.ObservableSwitchTest',
      },
    ],
  },
};
