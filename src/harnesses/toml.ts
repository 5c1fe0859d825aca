/** What a configuration file needs of TOML. Tables are written last, as the format asks. */
export type TomlValue = string | number | boolean | readonly string[] | TomlTable;
export type TomlTable = { readonly [key: string]: TomlValue | undefined };

/** A TOML document. Keys and strings may hold anything; what no TOML can hold, half a character, becomes U+FFFD. */
export function toToml(table: TomlTable): string {
  return `${tableLines(table, []).join('\n')}\n`;
}

function tableLines(table: TomlTable, path: readonly string[]): string[] {
  const entries = Object.entries(table).flatMap(([key, value]) => (value === undefined ? [] : [{ key, value }]));
  const lines = path.length === 0 ? [] : [`[${path.map(text).join('.')}]`];
  for (const { key, value } of entries) {
    if (!isTable(value)) lines.push(`${text(key)} = ${plain(value)}`);
  }
  for (const { key, value } of entries) {
    if (isTable(value)) lines.push(...tableLines(value, [...path, key]));
  }
  return lines;
}

function isTable(value: TomlValue): value is TomlTable {
  return typeof value === 'object' && !Array.isArray(value);
}

function plain(value: Exclude<TomlValue, TomlTable>): string {
  if (typeof value === 'string') return text(value);
  return typeof value === 'object' ? `[${value.map(text).join(', ')}]` : String(value);
}

/** A basic string: JSON's, but that the format wants DEL escaped and knows no half of a surrogate pair. */
function text(value: string): string {
  const whole = value.replace(/\p{Surrogate}/gu, '\ufffd');
  return JSON.stringify(whole).replaceAll('\x7f', '\\u007f');
}
