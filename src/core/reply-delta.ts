/**
 * A piece of a reply as the policy writes it: thinking first, then text, then calls by ascending `index`. A call begins with
 * its id and name; its argument text follows in any number of pieces, before the next call begins.
 */
export type ReplyDelta =
  | { readonly kind: 'reasoning'; readonly text: string }
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'call'; readonly index: number; readonly id: string; readonly name: string }
  | { readonly kind: 'arguments'; readonly index: number; readonly text: string };
