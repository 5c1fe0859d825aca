const BLOCK = 512;

type Fields = {
  readonly name: string | Buffer;
  readonly type?: string;
  readonly target?: string;
  readonly size?: number;
  /** The bytes of the field for the size, which replace `size`. */
  readonly rawSize?: Buffer;
  /** Whether further blocks with a map of holes follow. */
  readonly isExtended?: boolean;
};

/** Makes headers of tar archives, including headers that no archive program writes. */
export const Header = {
  of({ name, type = '0', target = '', size = 0, rawSize, isExtended = false }: Fields): Buffer {
    const header = Buffer.alloc(BLOCK);
    Buffer.from(name).copy(header, 0, 0, 100);
    header.write('0000644\0', 100);
    header.write('0000000\0', 108);
    header.write('0000000\0', 116);
    (rawSize ?? sizeField(size)).copy(header, 124, 0, 12);
    header.write('00000000000\0', 136);
    header.write(type, 156);
    header.write(target, 157);
    header.write('ustar\0', 257);
    if (isExtended) header[482] = 1;
    header.fill(' ', 148, 156);
    const sum = header.reduce((total, byte) => total + byte, 0);
    header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148);
    return header;
  },
};

/** Sizes that octal digits cannot represent are written in base 256. */
function sizeField(size: number): Buffer {
  if (size < 8 ** 11) return Buffer.from(`${size.toString(8).padStart(11, '0')}\0`);
  const field = Buffer.alloc(12);
  field.writeBigUInt64BE(BigInt(size), 4);
  field[0] = 0x80;
  return field;
}
