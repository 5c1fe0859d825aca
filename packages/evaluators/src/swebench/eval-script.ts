import { shellWord } from '@floe-rl/core';
import type { Repository, TestCommands } from './commands/table.ts';
import { END_MARKER, EXIT_STATUS_MARKER, START_MARKER } from './log.ts';

/** The parts of a row that determine how its tests are run. */
export type TestedRow = { readonly version: string; readonly testPatch: string };

const CONDA = ['source /opt/miniconda3/bin/activate', 'conda activate testbed'];
const EXIT_STATUS_VARIABLE = 'SWEBENCH_TEST_EXIT_CODE';
/** Lines at the start of every evaluation script of the package `swebench`. */
const PREAMBLE = ['#!/bin/bash', 'set -uxo pipefail'];

/**
 * Returns the script that runs a test command in the repository and prints the markers around its output. The test patch has already been
 * applied.
 */
export function scriptForCommand(testCommand: string): string {
  return scriptOf(between([testCommand]));
}

/** Returns the script that runs the tests of a version of a repository, in the repository, as `swebench` 4.1.0 does. */
export function scriptForVersion(repository: Repository, commands: TestCommands, row: TestedRow): string {
  return scriptOf([
    ...(repository.conda ? CONDA : []),
    'git config --global --add safe.directory "$PWD"',
    ...(commands.setup ?? []),
    ...(commands.build ?? []),
    ...between(testLines(repository, commands, row)),
  ]);
}

/**
 * Returns the script of a row that has one. The script also prints the exit status of the tests after the end marker. Returns `null` when the
 * script lacks a marker.
 */
export function scriptOfRow(evalScript: string): string | null {
  const lines = evalScript
    .trim()
    .split('\n')
    .filter((line) => !PREAMBLE.includes(line));
  const end = lines.findIndex((line) => line.includes(END_MARKER));
  if (end < 0 || !evalScript.includes(START_MARKER)) return null;
  return scriptOf([...lines.slice(0, end), ...atEnd(lines[end] ?? ''), ...lines.slice(end + 1)]);
}

/** Both output streams of the script are written to standard output, so that the log has them in the order of writing. */
function scriptOf(lines: readonly string[]): string {
  const [shell, ...options] = PREAMBLE;
  return `${[shell, 'exec 2>&1', ...options, ...lines].join('\n')}\n`;
}

function between(lines: readonly string[]): string[] {
  return [`: '${START_MARKER}'`, ...lines, ...atEnd(`: '${END_MARKER}'`)];
}

function atEnd(markerLine: string): string[] {
  return [`${EXIT_STATUS_VARIABLE}=$?`, markerLine, `echo "${EXIT_STATUS_MARKER}: $${EXIT_STATUS_VARIABLE}"`];
}

function testLines({ appends }: Repository, { test }: TestCommands, row: TestedRow): readonly string[] {
  if (appends === 'calypso') return calypsoLines(row);
  if (typeof test !== 'string') return test;
  if (appends === undefined) return [test];
  if (appends === 'cases') return [`${test} "${mypyCases(row.testPatch).join(' or ')}"`];
  const files = pathsOf(row.testPatch).filter((path) => !NOT_TESTS.some((suffix) => path.endsWith(suffix)));
  const names = appends === 'modules' ? files.map(moduleOf) : files;
  return [[test, ...names.map(shortestWord)].join(' ')];
}

/** Endings of the names of files in a test patch that are not tests. */
const NOT_TESTS = ['.json', '.png', 'csv', '.txt', '.md', '.jpg', '.jpeg', '.pkl', '.yml', '.yaml', '.toml'];

/** Returns the paths of the files that a patch changes. */
function pathsOf(patch: string): string[] {
  return [...patch.matchAll(/diff --git a\/.* b\/(.*)/g)].map(([, path = '']) => path);
}

/** Returns the name of a test file for Django's test runner. */
function moduleOf(path: string): string {
  return path
    .replace(/\.py$/, '')
    .replace(/^tests\//, '')
    .replaceAll('/', '.');
}

function mypyCases(patch: string): string[] {
  return [...patch.matchAll(/\[case ([^\]]+)\]/g)].map(([, name = '']) => name);
}

/** Versions of wp-calypso, by the name of the file with their configuration of Jest. */
const CALYPSO_CONFIGS: Readonly<Record<string, readonly string[]>> = {
  'jest.config.js': ['10.10.0', '10.12.0', '10.13.0', '10.14.0', '10.15.2', '10.16.3'],
  'jest.config.json': ['6.11.5', '8.9.1', '8.9.3', '8.9.4', '8.11.0', '8.11.2', '10.4.1', '10.5.0', '10.6.0', '10.9.0'],
};

/**
 * Returns the commands of wp-calypso, which runs Jest for each file of the test patch. A file with snapshots is replaced by the folder of its
 * tests.
 */
function calypsoLines({ version, testPatch }: TestedRow): string[] {
  const config = Object.entries(CALYPSO_CONFIGS).find(([, versions]) => versions.includes(version))?.[0];
  return pathsOf(testPatch).flatMap((changed) => {
    const path = /__snapshots__\/.*.js.snap$/.test(changed) ? changed.split('/').slice(0, -2).join('/') : changed;
    if (path.startsWith('test/e2e'))
      return ['cd test/e2e', `NODE_CONFIG_ENV=test npm run test ${shortestWord(path)}`, 'cd ../..'];
    if (!path.startsWith('client') && !path.startsWith('packages')) return [];
    const part = path.split('/')[0];
    return config === undefined
      ? [`npm run test-${part} --verbose '${path}'`]
      : [`./node_modules/.bin/jest --verbose -c=test/${part}/${config} '${path}'`];
  });
}

/** Returns a text as one word of the shell. The text is quoted only when that is necessary. */
function shortestWord(text: string): string {
  return /^[\w./@+:,-]+$/.test(text) ? text : shellWord(text);
}
