// Package crc is CRC-32 (IEEE) for packets. hash/crc32 works in steps of 16 bytes and takes what is left byte by byte, which
// costs a short packet as much as all the rest; here the last words are taken whole.
package crc

import (
	"encoding/binary"
	"hash/crc32"
)

const (
	block = 16 // step of hash/crc32 …
	least = 64 // … from so many bytes on
)

// tail is what is left behind the last block of most packets: their headers are 44 bytes, their payload a multiple of 16.
const tail = 12

// words[k] is what a byte does to the checksum with k more bytes behind it.
var words = makeWords()

func makeWords() (t [tail][256]uint32) {
	t[0] = *crc32.IEEETable
	for i := range t[0] {
		for k := 1; k < len(t); k++ {
			t[k][i] = t[k-1][i]>>8 ^ t[0][byte(t[k-1][i])]
		}
	}
	return t
}

// Update goes on with checksum c over b. The first one is 0.
func Update(c uint32, b []byte) uint32 {
	if len(b) >= least {
		n := len(b) &^ (block - 1)
		c = crc32.Update(c, crc32.IEEETable, b[:n])
		b = b[n:]
	}
	c = ^c
	if len(b) == tail { // all at once: each step below waits for the one before
		x, y, z := c^binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[8:])
		return ^(words[11][byte(x)] ^ words[10][byte(x>>8)] ^ words[9][byte(x>>16)] ^ words[8][byte(x>>24)] ^
			words[7][byte(y)] ^ words[6][byte(y>>8)] ^ words[5][byte(y>>16)] ^ words[4][byte(y>>24)] ^
			words[3][byte(z)] ^ words[2][byte(z>>8)] ^ words[1][byte(z>>16)] ^ words[0][byte(z>>24)])
	}
	for ; len(b) >= 4; b = b[4:] {
		c ^= binary.LittleEndian.Uint32(b)
		c = words[3][byte(c)] ^ words[2][byte(c>>8)] ^ words[1][byte(c>>16)] ^ words[0][byte(c>>24)]
	}
	for _, x := range b {
		c = c>>8 ^ words[0][byte(c)^x]
	}
	return ^c
}
