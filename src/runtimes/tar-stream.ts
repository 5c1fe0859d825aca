import type { SandboxFile } from '../core/sandbox.ts';

const BLOCK_BYTES = 512;
/** The name field of a header; a longer name goes into an entry of its own in front. */
const NAME_BYTES = 100;
const DEFAULT_MODE = 0o644;

/** A tar archive of regular files, named by their path without the leading slash. Modes are kept, owners are not. */
export function tarOf(files: readonly SandboxFile[], modifiedMs: number): Buffer {
  const seconds = Math.floor(modifiedMs / 1000);
  const blocks: Buffer[] = [];
  for (const file of files) {
    const name = Buffer.from(file.path.replace(/^\/+/, ''));
    const content = typeof file.content === 'string' ? Buffer.from(file.content) : file.content;
    if (name.length > NAME_BYTES) {
      const long = Buffer.concat([name, Buffer.alloc(1)]);
      blocks.push(header(Buffer.from('././@LongLink'), long.length, 0, seconds, 'L'), padded(long));
    }
    blocks.push(
      header(name.subarray(0, NAME_BYTES), content.length, file.mode ?? DEFAULT_MODE, seconds, '0'),
      padded(content),
    );
  }
  // Two empty blocks end an archive.
  blocks.push(Buffer.alloc(2 * BLOCK_BYTES));
  return Buffer.concat(blocks);
}

function header(name: Buffer, size: number, mode: number, seconds: number, type: '0' | 'L'): Buffer {
  const block = Buffer.alloc(BLOCK_BYTES);
  name.copy(block, 0);
  block.write(octal(mode, 7), 100, 'latin1');
  block.write(octal(0, 7), 108, 'latin1');
  block.write(octal(0, 7), 116, 'latin1');
  block.write(octal(size, 11), 124, 'latin1');
  block.write(octal(seconds, 11), 136, 'latin1');
  block.write(' '.repeat(8), 148, 'latin1');
  block.write(type, 156, 'latin1');
  block.write('ustar  ', 257, 'latin1');
  let sum = 0;
  for (const byte of block) sum += byte;
  block.write(`${octal(sum, 6)}\0 `, 148, 'latin1');
  return block;
}

function octal(value: number, digits: number): string {
  return value.toString(8).padStart(digits, '0');
}

function padded(content: Buffer): Buffer {
  const rest = content.length % BLOCK_BYTES;
  return rest === 0 ? content : Buffer.concat([content, Buffer.alloc(BLOCK_BYTES - rest)]);
}
