// Archives as an agent can make them. `floe artifacts --list` reads them on the machine of an operator.
import { Header } from './tar-header.ts';

export type HostileArchive = { readonly name: string; readonly make: () => Buffer };

/** Claimed size in bytes of entries whose content is not there. */
const FOUR_GB = 2 ** 32;
const MANY_ENTRIES = 50_000;
const BLOCK = 512;

function padded(text: Buffer): Buffer {
  return Buffer.concat([text, Buffer.alloc((BLOCK - (text.length % BLOCK)) % BLOCK)]);
}

function longName(type: 'L' | 'K', bytes: number): Buffer {
  return Buffer.concat([Header.of({ name: 'x', type, size: bytes }), padded(Buffer.alloc(bytes, 'n'))]);
}

function pax(record: string, type: 'x' | 'g' = 'x'): Buffer {
  const text = Buffer.from(record);
  return Buffer.concat([Header.of({ name: 'x', type, size: text.length }), padded(text)]);
}

const FILE = Header.of({ name: 'file' });
const END = Buffer.alloc(2 * BLOCK);

export const ARCHIVES: readonly HostileArchive[] = [
  {
    name: 'a name that leaves the folder',
    make: () => Buffer.concat([Header.of({ name: `${'../'.repeat(9)}etc/x` }), END]),
  },
  { name: 'an absolute name', make: () => Buffer.concat([Header.of({ name: '/etc/x' }), END]) },
  {
    name: 'a link out of the folder',
    make: () => Buffer.concat([Header.of({ name: 'l', type: '2', target: '/etc' }), Header.of({ name: 'l/x' }), END]),
  },
  {
    name: 'a hard link out of the folder',
    make: () => Buffer.concat([Header.of({ name: 'l', type: '1', target: '../../etc/passwd' }), END]),
  },
  { name: 'a device', make: () => Buffer.concat([Header.of({ name: 'd', type: '3' }), END]) },
  { name: 'a pipe', make: () => Buffer.concat([Header.of({ name: 'p', type: '6' }), END]) },
  { name: 'an entry of an unknown type', make: () => Buffer.concat([Header.of({ name: 'z', type: 'Z' }), END]) },
  { name: 'an entry of 4 GB without its content', make: () => Header.of({ name: 'f', size: FOUR_GB }) },
  { name: 'an entry of 8 EB', make: () => Header.of({ name: 'f', size: 2 ** 63 }) },
  { name: 'an entry of a negative size', make: () => Header.of({ name: 'f', rawSize: Buffer.alloc(12, 0xff) }) },
  { name: 'a size that is not a number', make: () => Header.of({ name: 'f', rawSize: Buffer.from('99999999999\0') }) },
  { name: 'a long name of 2 MiB', make: () => Buffer.concat([longName('L', 2 ** 21), FILE, END]) },
  { name: 'a long name of 4 GB', make: () => Header.of({ name: 'x', type: 'L', size: FOUR_GB }) },
  { name: 'a long target without an entry', make: () => longName('K', 100) },
  { name: 'a pax size of 4 GB', make: () => Buffer.concat([pax('19 size=4294967296\n'), FILE, END]) },
  { name: 'a pax record with a wrong length', make: () => Buffer.concat([pax('999999999 path=x\n'), FILE, END]) },
  { name: 'a pax record without an end', make: () => Buffer.concat([pax('12 path'), FILE, END]) },
  {
    name: 'a pax path that leaves the folder, for all entries',
    make: () => Buffer.concat([pax('20 path=../../../x\n', 'g'), FILE, END]),
  },
  {
    name: 'a sparse map without an end',
    make: () =>
      Buffer.concat([
        Header.of({ name: 's', type: 'S', isExtended: true }),
        ...Array.from({ length: 100 }, () => Buffer.alloc(BLOCK, 1)),
      ]),
  },
  { name: 'a wrong checksum', make: () => Buffer.concat([Buffer.alloc(BLOCK, 'x'), END]) },
  { name: 'half of a header', make: () => FILE.subarray(0, 200) },
  { name: 'nothing', make: () => Buffer.alloc(0) },
  {
    name: 'an invalid UTF-8 name with control characters',
    make: () => Buffer.concat([Header.of({ name: Buffer.from('a\xff\xfe\x1b[2Jb', 'latin1') }), END]),
  },
  {
    name: `${MANY_ENTRIES} entries`,
    make: () => Buffer.concat([...Array.from({ length: MANY_ENTRIES }, () => FILE), END]),
  },
];
