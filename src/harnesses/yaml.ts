/** Everything but printable ASCII; a whole character each. */
const UNSAFE = /[^\x20-\x7e]/gu;

/**
 * A YAML document that any parser reads back as the same JSON value: JSON, in which every character that one of them might
 * refuse, fold or take for another is escaped. Half a character, which no UTF-8 can hold, becomes U+FFFD.
 */
export function toYaml(value: unknown): string {
  const whole = (_key: string, part: unknown): unknown =>
    typeof part === 'string' ? part.replaceAll(/\p{Surrogate}/gu, '\ufffd') : part;
  return JSON.stringify(value, whole).replaceAll(UNSAFE, (character) => {
    const code = character.codePointAt(0) ?? 0;
    return code > 0xffff ? `\\U${hex(code, 8)}` : `\\u${hex(code, 4)}`;
  });
}

function hex(code: number, digits: number): string {
  return code.toString(16).padStart(digits, '0');
}
