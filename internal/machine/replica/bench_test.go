package replica

import (
	"context"
	"fmt"
	"hash/crc32"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

// BenchmarkPeer tells what a snapshot of 96 MiB costs that comes from another node: the processor of
// both, over TLS and the loopback.
func BenchmarkPeer(b *testing.B) {
	node := func() *Replica {
		data := b.TempDir()
		dir, err := snapshot.Open(data)
		noError(b, err)
		bucket, err := blob.OpenDir(filepath.Join(data, "bucket"))
		noError(b, err)
		r := New(bucket, dir, "", newKey(), "one", func(int64) error { return nil })
		b.Cleanup(func() { _ = r.Close() })
		return r
	}
	one := node()
	tmp, err := one.dir.Begin()
	noError(b, err)
	pages := make([]byte, 96<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(pages)
	noError(b, os.WriteFile(filepath.Join(tmp, "pages"), pages, 0o600))
	sum := fmt.Sprintf("%08x", crc32.Checksum(pages, crc32.MakeTable(crc32.Castagnoli)))
	s := cay.Snapshot{Format: 1, ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot, Team: "t", Files: []cay.SnapFile{{Name: "pages", Size: int64(len(pages)), CRC32C: sum}}}
	noError(b, one.dir.Commit(tmp, s))
	server := httptest.NewUnstartedServer(one)
	server.EnableHTTP2 = false
	server.StartTLS()
	defer server.Close()
	transport := server.Client().Transport.(*http.Transport)
	transport.MaxIdleConnsPerHost = 256
	ask := func(ctx context.Context, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, http.NoBody)
		if err != nil {
			return nil, err
		}
		return transport.RoundTrip(r)
	}
	used := func() time.Duration {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.SetBytes(int64(len(pages)))
	other := node()
	other.Ask(func(context.Context, cay.SnapshotID) ([]Maker, error) { return []Maker{{Node: "one", Ask: ask}}, nil }, slog.New(slog.DiscardHandler))
	b.ResetTimer()
	before := used()
	for b.Loop() {
		a, err := other.arrive(b.Context(), s.ID)
		noError(b, err)
		noError(b, a.bringAll(b.Context()))
		a.end("", context.Canceled)
	}
	b.ReportMetric(float64((used()-before).Milliseconds())/float64(b.N), "cpu-ms/op")
}
