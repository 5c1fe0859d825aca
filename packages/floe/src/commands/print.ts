import { styleText } from 'node:util';
import type { FloeError } from '@floe-rl/core';

/** Whether to print colours. They are printed when standard output is a terminal and NO_COLOR is not set. */
const hasColour = process.stdout.isTTY === true && process.env.NO_COLOR === undefined;

type Style = 'bold' | 'dim' | 'green' | 'red' | 'yellow' | 'cyan';

/** Adds a terminal style to a text. Returns the text unchanged when colours are off. */
export function paint(style: Style, text: string): string {
  return hasColour ? styleText(style, text) : text;
}

/** Prints a line to standard output. */
export function printLine(text = ''): void {
  process.stdout.write(`${text}\n`);
}

/** Prints progress or a note to standard error, so that standard output contains only data for scripts. */
export function printNote(text: string): void {
  process.stderr.write(`${text}\n`);
}

/** Prints a value as one line of JSON to standard output. */
export function printJson(value: unknown): void {
  printLine(JSON.stringify(value));
}

/**
 * Makes a text of an agent or another author safe to print. Control characters and characters that change the direction of text, which a
 * terminal would interpret, are shown as symbols or codes. Line breaks and tabs stay.
 */
export function visible(text: string): string {
  return text.replaceAll('\r\n', '\n').replace(/\p{Cc}|\p{Bidi_Control}/gu, (char) => {
    const code = char.codePointAt(0) ?? 0;
    if (char === '\n' || char === '\t') return char;
    // Unicode has a symbol for each of these control characters.
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : `\\u{${code.toString(16)}}`;
  });
}

const ESCAPE = String.fromCharCode(27);
const ANSI = new RegExp(`${ESCAPE}\\[[0-9;]*m`, 'g');

/** Returns the number of visible characters of a text, without the escape codes of terminal styles. */
function width(text: string): number {
  return text.replace(ANSI, '').length;
}

/** Formats a table whose columns are as wide as their widest cells. Numbers are right-aligned, and `null` becomes a dash. */
export function formatTable(header: readonly string[], rows: readonly (readonly (string | number | null)[])[]): string {
  const cells = rows.map((row) => row.map((cell) => (cell === null ? '-' : String(cell))));
  const widths = header.map((title, i) => Math.max(width(title), ...cells.map((row) => width(row[i] ?? ''))));
  const numeric = header.map(
    (_, i) => rows.length > 0 && rows.every((row) => typeof row[i] === 'number' || row[i] === null),
  );
  const format = (row: readonly string[]): string =>
    row
      .map((cell, i) => {
        const space = ' '.repeat(Math.max(0, (widths[i] ?? 0) - width(cell)));
        return numeric[i] ? space + cell : cell + space;
      })
      .join('  ')
      .trimEnd();
  return [paint('dim', format(header)), ...cells.map(format)].join('\n');
}

/**
 * Prints an error to standard error, with a hint how to fix it. With `asJson`, prints it to standard output as JSON instead. The stack is
 * printed only for `internal`, a defect of floe, because a report of the defect needs it.
 */
export function printError(error: FloeError, asJson: boolean): void {
  if (error.code === 'internal') printNote((error.cause instanceof Error ? error.cause : error).stack ?? '');
  if (asJson) {
    printJson({
      error: { code: error.code, message: error.message, details: error.details, retryable: error.retryable },
    });
    return;
  }
  printNote(`${paint('red', 'error')} ${error.code}: ${visible(error.message)}`);
  if (error.code === 'unauthorized') {
    printNote(
      '  Set the token with --token-file, $FLOE_TOKEN, or the file control-token in the floe home ($FLOE_HOME, else ~/.floe).',
    );
  }
  if (error.code === 'peer_unreachable') {
    printNote(
      '  Is the server running? Start one with floe up, or set its URL with --url or $FLOE_URL (with --ca for a private CA).',
    );
  }
  const issues = error.details.issues;
  if (Array.isArray(issues) && issues.length > 1) {
    for (const issue of issues as { path: string; message: string }[]) printNote(`  ${issue.path}: ${issue.message}`);
  }
}

/** Escapes the control characters of a text that an agent or a task chose, because a terminal would interpret them. */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\\]/gu, (char) =>
    char === '\\' ? '\\\\' : `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`,
  );
}
