import type { DevToolsValue } from './devtools.ts';

/** Roles of elements that can be operated. They are numbered. */
const OPERATED = new Set([
  'button',
  'checkbox',
  'combobox',
  'DisclosureTriangle',
  'link',
  'listbox',
  'menuitem',
  'menuitemcheckbox',
  'menuitemradio',
  'option',
  'radio',
  'searchbox',
  'slider',
  'spinbutton',
  'switch',
  'tab',
  'textbox',
  'treeitem',
]);
/** Roles of other elements that are shown with their name. */
const SHOWN = new Set(['alert', 'alertdialog', 'dialog', 'heading', 'image', 'img', 'progressbar', 'row', 'status']);
/** States that are shown when they are true, with the word for them. */
const STATES: Readonly<Record<string, string>> = {
  focused: 'focused',
  disabled: 'disabled',
  expanded: 'expanded',
  selected: 'selected',
  required: 'required',
};
/** Maximum number of characters of a name, a value or a text. */
const MAX_NAME_CHARS = 1_000;

/** One line of a page's text. `nodeId` is the DevTools id of the element with the number of this line; `null` for a line without one. */
export type PageLine = { readonly text: string; readonly nodeId: number | null };

type AxNode = {
  readonly nodeId: string;
  readonly childIds?: readonly string[];
  readonly ignored?: boolean;
  readonly role?: { readonly value?: unknown };
  readonly name?: { readonly value?: unknown };
  readonly value?: { readonly value?: unknown };
  readonly properties?: readonly { readonly name: string; readonly value?: { readonly value?: unknown } }[];
  readonly backendDOMNodeId?: number;
};

/**
 * A node that waits to be written, with its depth, and the name and value of the nearest written element above it. `isClosed` is whether it is
 * in a list that opens only on a click, so that it has no place on the page.
 */
type Waiting = { readonly id: string; readonly depth: number; readonly above: string; readonly isClosed: boolean };

/**
 * Returns a page as lines: texts, headings and what can be operated, in their order and indented by their nesting. `tree` is the result of
 * `Accessibility.getFullAXTree`. Elements that can be operated are numbered from `firstNumber`.
 */
export function pageLines(tree: DevToolsValue, firstNumber: number): PageLine[] {
  const nodes = (tree.nodes ?? []) as readonly AxNode[];
  const byId = new Map(nodes.map((node) => [node.nodeId, node]));
  const lines: PageLine[] = [];
  let number = firstNumber;
  // A recursive function could exceed the stack on a deeply nested page.
  const waiting: Waiting[] =
    nodes[0] === undefined ? [] : [{ id: nodes[0].nodeId, depth: 0, above: '', isClosed: false }];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    const { id, depth, above, isClosed } = next;
    const node = byId.get(id);
    byId.delete(id);
    if (node === undefined) continue;
    const text = lineOf(node, above);
    const isNumbered = text !== null && !isClosed && isOperated(node) && node.backendDOMNodeId !== undefined;
    if (text !== null) {
      const mark = isNumbered ? `[${number++}] ` : '';
      lines.push({
        text: `${'  '.repeat(Math.min(depth, 12))}${mark}${text}`,
        nodeId: isNumbered ? (node.backendDOMNodeId ?? null) : null,
      });
    }
    const inner = {
      ...(text === null
        ? { depth, above }
        : { depth: depth + 1, above: `${nameOf(node)} ${labelText(node.value?.value)}` }),
      isClosed: isClosed || node.role?.value === 'MenuListPopup',
    };
    for (const child of [...(node.childIds ?? [])].reverse()) waiting.push({ id: child, ...inner });
  }
  return lines;
}

/** Returns the text of a node; `null` for a node that is not shown. `above` is the name of the element that contains it. */
function lineOf(node: AxNode, above: string): string | null {
  if (node.ignored === true) return null;
  const role = String(node.role?.value ?? '');
  const name = nameOf(node);
  if (role === 'StaticText') return name === '' || above.includes(name) ? null : name;
  if (!isOperated(node) && !(SHOWN.has(role) && (name !== '' || role === 'row'))) return null;
  const value = labelText(node.value?.value);
  const parts = [
    role.toLowerCase(),
    ...(name === '' ? [] : [JSON.stringify(name)]),
    ...(value === '' || value === name ? [] : [`value ${JSON.stringify(value)}`]),
    ...statesOf(node),
  ];
  return parts.join(' ');
}

function isOperated(node: AxNode): boolean {
  const role = String(node.role?.value ?? '');
  if (node.ignored === true || role === 'RootWebArea' || role === 'Iframe') return false;
  return OPERATED.has(role) || propertyOf(node, 'focusable') === true;
}

function statesOf(node: AxNode): string[] {
  const states = Object.keys(STATES).flatMap((name) => (propertyOf(node, name) === true ? [STATES[name] ?? ''] : []));
  const checked = propertyOf(node, 'checked');
  const isInvalid = !['false', '', undefined].includes(propertyOf(node, 'invalid') as string | undefined);
  return [...states, ...(checked === 'true' ? ['checked'] : []), ...(isInvalid ? ['invalid'] : [])];
}

function propertyOf(node: AxNode, name: string): unknown {
  return node.properties?.find((property) => property.name === name)?.value?.value;
}

function nameOf(node: AxNode): string {
  return labelText(node.name?.value);
}

function labelText(value: unknown): string {
  const text = String(value ?? '')
    .replace(/\s+/g, ' ')
    .trim();
  return text.length > MAX_NAME_CHARS ? `${text.slice(0, MAX_NAME_CHARS)}…` : text;
}
