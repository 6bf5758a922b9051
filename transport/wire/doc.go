// Package wire holds the codecs of MetaRoCE packets: from BTH to ICRC, nothing of IP or UDP.
//
// Every function works on bytes of the caller and allocates nothing. Bytes from the network never cause a panic:
// what is wrong with them is a Drop reason, to be counted by the caller. Layouts come from spec/wire/formats.yaml
// by way of offsets_gen.go.
//
//	+--------+--------+--------------------+---------+---------+------+
//	| BTH 12 | MPH 16 | extension headers  | payload | pad 0-3 | ICRC |
//	+--------+--------+--------------------+---------+---------+------+
//
// To send: fill a Header, call PadFor with the payload's length, Put, copy the payload behind it, zero the pad,
// leave ICRCLen bytes and call Seal on the whole. To receive: Decode, then AckReader, DecodeHello or DecodeProbe
// on the payload where the opcode says so.
package wire

//go:generate go run ../../tools/specgen
