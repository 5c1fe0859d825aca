import { describe, expect, it } from 'vitest';
import { parseKeys } from '../../../src/box/browser/keys.ts';

describe('the name of a key', () => {
  it.each([
    ['Enter', { key: 'Enter', keyCode: 13, text: '\r' }, 0],
    ['return', { key: 'Enter' }, 0],
    ['Page_Down', { key: 'PageDown', text: null }, 0],
    ['a', { key: 'a', code: 'KeyA', keyCode: 65, text: 'a' }, 0],
    ['shift+A', { key: 'A', text: 'A' }, 8],
    ['ctrl+a', { key: 'a', text: null }, 2],
    ['Control + Shift + Tab', { key: 'Tab' }, 10],
    ['ctrl++', { key: '+', text: null }, 2],
    ['+', { key: '+', text: '+' }, 0],
    ['F12', { key: 'F12', keyCode: 123 }, 0],
    ['ü', { key: 'ü', code: '', text: 'ü' }, 0],
  ])('%j is read', (name, key, modifiers) => {
    expect(parseKeys(name)).toMatchObject({ key, modifiers });
  });

  it.each(['', 'hyper+x', 'Entre', 'a+b', 'ctrl+'])('%j is refused', (name) => {
    expect(parseKeys(name)).toBeNull();
  });
});
