/** A key as the DevTools protocol names it. */
export type Key = {
  readonly key: string;
  readonly code: string;
  readonly keyCode: number;
  /** The text that the key writes; `null` for a key that writes none. */
  readonly text: string | null;
};

/** A key with the keys that are held while it is pressed, as a bit mask of the DevTools protocol. */
export type KeyPress = { readonly key: Key; readonly modifiers: number };

const MODIFIERS: Readonly<Record<string, number>> = { alt: 1, ctrl: 2, control: 2, meta: 4, shift: 8 };

const NAMED: Readonly<Record<string, Key>> = {
  enter: { key: 'Enter', code: 'Enter', keyCode: 13, text: '\r' },
  tab: { key: 'Tab', code: 'Tab', keyCode: 9, text: null },
  space: { key: ' ', code: 'Space', keyCode: 32, text: ' ' },
  escape: named('Escape', 27),
  backspace: named('Backspace', 8),
  delete: named('Delete', 46),
  insert: named('Insert', 45),
  home: named('Home', 36),
  end: named('End', 35),
  pageup: named('PageUp', 33),
  pagedown: named('PageDown', 34),
  left: named('ArrowLeft', 37),
  up: named('ArrowUp', 38),
  right: named('ArrowRight', 39),
  down: named('ArrowDown', 40),
  ...Object.fromEntries(
    Array.from({ length: 12 }, (_, index) => [`f${index + 1}`, named(`F${index + 1}`, 112 + index)]),
  ),
};
/** Other usual names of keys. */
const ALIASES: Readonly<Record<string, string>> = {
  return: 'enter',
  esc: 'escape',
  del: 'delete',
  arrowleft: 'left',
  arrowup: 'up',
  arrowright: 'right',
  arrowdown: 'down',
  page_up: 'pageup',
  page_down: 'pagedown',
};

/** Returns the key that a text such as `Enter`, `a` or `ctrl+shift+Tab` names; `null` when it names none. */
export function parseKeys(text: string): KeyPress | null {
  // The last part may be a plus sign itself.
  const parts = text === '+' ? ['+'] : text.endsWith('++') ? [...text.slice(0, -2).split('+'), '+'] : text.split('+');
  const name = parts.at(-1) ?? '';
  let modifiers = 0;
  for (const part of parts.slice(0, -1)) {
    const bit = MODIFIERS[part.trim().toLowerCase()];
    if (bit === undefined) return null;
    modifiers |= bit;
  }
  const lower = name.trim().toLowerCase();
  const key = NAMED[ALIASES[lower] ?? lower] ?? characterKey(name);
  if (key === null) return null;
  // A combination such as ctrl+a is a command and writes nothing.
  const writes = (modifiers & ~(MODIFIERS.shift ?? 0)) === 0;
  return { key: writes ? key : { ...key, text: null }, modifiers };
}

function characterKey(character: string): Key | null {
  if ([...character].length !== 1) return null;
  const upper = character.toUpperCase();
  const code = /[A-Z]/.test(upper) ? `Key${upper}` : /\d/.test(character) ? `Digit${character}` : '';
  return { key: character, code, keyCode: code === '' ? 0 : upper.charCodeAt(0), text: character };
}

function named(key: string, keyCode: number): Key {
  return { key, code: key, keyCode, text: null };
}
