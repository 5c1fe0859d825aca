import { Pauses } from './log-parser.ts';

export interface XmlReader {
  begin(element: string, attributes: ReadonlyMap<string, string>): void;
  end(element: string): void;
}

const NAME = '[\\p{L}_:][\\p{L}\\p{N}\\p{M}_:.\\u00b7-]*';
const START_TAG = new RegExp(`<(${NAME})`, 'uy');
const ATTRIBUTE = new RegExp(`[ \\t\\n\\r]+(${NAME})[ \\t\\n\\r]*=[ \\t\\n\\r]*("[^<"]*"|'[^<']*')`, 'uy');
const TAG_END = /[ \t\n\r]*(\/?)>/uy;
const END_TAG = new RegExp(`</(${NAME})[ \\t\\n\\r]*>`, 'uy');
const INSTRUCTION = new RegExp(`<\\?(${NAME})(?=[ \\t\\n\\r]|\\?>)`, 'uy');
// biome-ignore lint/suspicious/noControlCharactersInRegex: XML does not allow these characters
const FORBIDDEN = /[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/;
const REFERENCE = /&(?:#([0-9]+)|#x([0-9a-fA-F]+)|([^;&]*));?/g;
const ENTITIES: ReadonlyMap<string, string> = new Map([
  ['lt', '<'],
  ['gt', '>'],
  ['amp', '&'],
  ['quot', '"'],
  ['apos', "'"],
]);

/**
 * Reads a document that consists of one element. Checks the rules of XML 1.0 for well-formed documents without a document type. Elements are
 * passed to `reader` while the document is read, and the final result is whether it is well-formed. The time is linear in the length of the
 * document.
 */
export function* readXml(xml: string, reader: XmlReader): Generator<undefined, boolean, undefined> {
  if (FORBIDDEN.test(xml)) return false;
  const pauses = new Pauses();
  const open: string[] = [];
  for (let at = 0; at < xml.length; ) {
    yield* pauses.at(at);
    if (at > 0 && open.length === 0) return false;
    const markup = xml.charAt(at) === '<';
    const end = markup ? readMarkup(xml, at, open, reader) : readText(xml, at);
    if (end === null) return false;
    at = end;
  }
  return open.length === 0;
}

/** Reads text up to the next markup. Returns its end; `null` when it is not well-formed. */
function readText(xml: string, at: number): number | null {
  const next = xml.indexOf('<', at);
  const end = next < 0 ? xml.length : next;
  const text = xml.slice(at, end);
  return text.includes(']]>') || decoded(text) === null ? null : end;
}

/** Reads a tag, comment, instruction or section. Returns its end; `null` when it is not well-formed. */
function readMarkup(xml: string, at: number, open: string[], reader: XmlReader): number | null {
  if (xml.startsWith('<!--', at)) {
    const end = xml.indexOf('--', at + 4);
    return end >= 0 && xml.charAt(end + 2) === '>' ? end + 3 : null;
  }
  if (xml.startsWith('<![CDATA[', at)) return endOf(xml, ']]>', at);
  if (xml.startsWith('<?', at)) {
    const target = matchAt(INSTRUCTION, xml, at)?.[1];
    return target === undefined || target.toLowerCase() === 'xml' ? null : endOf(xml, '?>', at);
  }
  if (xml.startsWith('</', at)) {
    const tag = matchAt(END_TAG, xml, at);
    if (tag === null || open.pop() !== tag[1]) return null;
    reader.end(tag[1] ?? '');
    return at + tag[0].length;
  }
  return readStartTag(xml, at, open, reader);
}

function readStartTag(xml: string, at: number, open: string[], reader: XmlReader): number | null {
  const tag = matchAt(START_TAG, xml, at);
  const name = tag?.[1];
  if (tag === null || name === undefined || hasUnknownPrefix(name)) return null;
  let end = at + tag[0].length;
  const attributes = new Map<string, string>();
  for (let match = matchAt(ATTRIBUTE, xml, end); match !== null; match = matchAt(ATTRIBUTE, xml, end)) {
    const [text, key = '', quoted = ''] = match;
    const value = decoded(quoted.slice(1, -1).replaceAll(/[\t\n\r]/g, ' '));
    if (value === null || attributes.has(key) || hasUnknownPrefix(key)) return null;
    attributes.set(key, value);
    end += text.length;
  }
  const close = matchAt(TAG_END, xml, end);
  if (close === null) return null;
  reader.begin(name, attributes);
  if (close[1] === '/') reader.end(name);
  else open.push(name);
  return end + close[0].length;
}

/** Documents of test runners declare no namespaces, so only the prefix `xml` is known. */
function hasUnknownPrefix(name: string): boolean {
  return name.includes(':') && !name.startsWith('xml:');
}

/** Replaces references to characters; `null` when one is not well-formed. */
function decoded(text: string): string | null {
  if (!text.includes('&')) return text;
  let isWellFormed = true;
  const result = text.replaceAll(REFERENCE, (reference, decimal?: string, hex?: string, entity?: string) => {
    const code = decimal === undefined ? Number.parseInt(hex ?? '', 16) : Number(decimal);
    const character = entity === undefined ? characterOf(code) : ENTITIES.get(entity);
    if (character === undefined || !reference.endsWith(';')) isWellFormed = false;
    return character ?? '';
  });
  return isWellFormed ? result : null;
}

function characterOf(code: number): string | undefined {
  if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return undefined;
  const character = String.fromCodePoint(code);
  return FORBIDDEN.test(character) ? undefined : character;
}

function endOf(xml: string, text: string, from: number): number | null {
  const at = xml.indexOf(text, from);
  return at < 0 ? null : at + text.length;
}

function matchAt(form: RegExp, text: string, at: number): RegExpExecArray | null {
  form.lastIndex = at;
  return form.exec(text);
}
