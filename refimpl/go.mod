// The DPDK reference implementation: the only folder with cgo. A nested module, because go-dpdk needs a `replace`, and a
// module with one cannot be installed with `go install`.
module github.com/metaroce/metaroce/refimpl

go 1.26.0

replace github.com/metaroce/metaroce => ../
