import { sharedLength } from './sequence.ts';

/**
 * A branch of a compressed prefix tree (radix tree) over token id sequences. The tree indexes the prompts and responses of a session's graph
 * by their ids. (The proxy's `PrefixIndex` indexes conversations by their messages, before ids exist.) The ids `ids[from..to)` lead from the
 * end of the parent branch to the end of this branch. They are a slice of an inserted sequence, never a copy.
 */
export class Branch<T> {
  ids: Int32Array;
  from: number;
  readonly to: number;
  /** Number of ids from the root to the end of this branch. */
  readonly depth: number;
  parent: Branch<T> | null;
  readonly children = new Map<number, Branch<T>>();
  /** The items whose prompt ends exactly at the end of this branch. */
  readonly prompts: T[] = [];
  /** The items in whose prompt the last message ends exactly at the end of this branch. Ids that follow, such as a generation prompt, do not count. */
  readonly messages: T[] = [];
  /** The first item whose sequence was inserted through this branch; `null` for the root. */
  readonly first: T | null;

  constructor(parent: Branch<T> | null, ids: Int32Array, from: number, to: number, depth: number, first: T | null) {
    this.parent = parent;
    this.ids = ids;
    this.from = from;
    this.to = to;
    this.depth = depth;
    this.first = first;
  }
}

const NO_IDS = new Int32Array(0);

export function newTree<T>(): Branch<T> {
  return new Branch<T>(null, NO_IDS, 0, 0, 0, null);
}

/**
 * Walks from the end of `start` along `ids[from..]` as far as the tree matches, and returns the branch at whose end the walk stops. If the
 * walk ends inside a branch, that branch is split at this point. Takes one memory comparison per visited branch.
 */
export function walk<T>(start: Branch<T>, ids: Int32Array, from: number): Branch<T> {
  let at = start;
  let position = from;
  while (position < ids.length) {
    const child: Branch<T> | undefined = at.children.get(ids[position] as number);
    if (child === undefined) return at;
    const shared = sharedLength(child.ids, child.from, child.to, ids, position, ids.length);
    if (shared < child.to - child.from) return split(at, child, shared);
    at = child;
    position += shared;
  }
  return at;
}

/** Inserts `ids[from..]` below `at`, the branch that {@link walk} returned for them, and returns the branch at which `ids` ends. */
export function extend<T>(at: Branch<T>, ids: Int32Array, from: number, item: T): Branch<T> {
  if (from >= ids.length) return at;
  const leaf = new Branch<T>(at, ids, from, ids.length, at.depth + ids.length - from, item);
  at.children.set(ids[from] as number, leaf);
  return leaf;
}

/** Returns the branch that ends at `depth` on the path from the root to `leaf`. Splits the branch that contains this point if necessary. */
export function branchAt<T>(leaf: Branch<T>, depth: number): Branch<T> {
  let at = leaf;
  while (at.parent !== null && at.parent.depth >= depth) at = at.parent;
  if (at.depth === depth || at.parent === null) return at;
  return split(at.parent, at, depth - at.parent.depth);
}

function split<T>(parent: Branch<T>, child: Branch<T>, length: number): Branch<T> {
  const cut = child.from + length;
  const middle = new Branch<T>(parent, child.ids, child.from, cut, parent.depth + length, child.first);
  parent.children.set(child.ids[child.from] as number, middle);
  middle.children.set(child.ids[cut] as number, child);
  child.parent = middle;
  child.from = cut;
  return middle;
}
