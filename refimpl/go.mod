// The DPDK reference implementation: the only folder with cgo. A nested module, because it holds a `replace`, and a module
// with one cannot be installed with `go install`.
module github.com/metaroce/metaroce/refimpl

go 1.26.0

require (
	github.com/metaroce/metaroce v0.0.0-00010101000000-000000000000
	github.com/urfave/cli/v2 v2.27.7
	github.com/vishvananda/netlink v1.3.1
	github.com/yerden/go-dpdk v0.0.0
	golang.org/x/sys v0.50.0
)

require (
	github.com/cpuguy83/go-md2man/v2 v2.0.7 // indirect
	github.com/google/gopacket v1.1.19 // indirect
	github.com/russross/blackfriday/v2 v2.1.0 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	github.com/xrash/smetrics v0.0.0-20240521201337-686a1a2994c1 // indirect
	golang.org/x/net v0.62.0 // indirect
)

// Our own subset of go-dpdk with its signatures, since the module proxy does not serve the original. Who has that deletes the line.
replace github.com/yerden/go-dpdk => ./godpdk

replace github.com/metaroce/metaroce => ../
