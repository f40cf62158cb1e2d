package replica

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/time/rate"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/blob"
	"github.com/cay-run/cay/internal/machine/snapshot"
)

// memory is what snapshots of benchmarks hold: the file that BENCH_PAGES names, such as the pages.img
// of a snapshot, or noise.
func memory(b *testing.B) []byte {
	b.Helper()
	if path := os.Getenv("BENCH_PAGES"); path != "" {
		pages, err := os.ReadFile(path)
		noError(b, err)
		return pages
	}
	return noise(1, 96<<20)
}

// used is the processor that this process has used.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPack tells what packing costs, and what it saves.
func BenchmarkPack(b *testing.B) {
	pages := memory(b)
	zstdOf := func(level zstd.EncoderLevel) func(room, part []byte) []byte {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(level), zstd.WithEncoderConcurrency(1))
		noError(b, err)
		return func(room, part []byte) []byte { return e.EncodeAll(part, room[:0]) }
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	noError(b, err)
	unzstd := func(into, packed []byte) error {
		_, err := decoder.DecodeAll(packed, into[:0])
		return err
	}
	for _, codec := range []struct {
		name   string
		pack   func(room, part []byte) []byte
		unpack func(into, packed []byte) error
	}{
		{"s2", s2.Encode, unpack},
		{"s2 better", s2.EncodeBetter, unpack},
		{"zstd fastest", zstdOf(zstd.SpeedFastest), unzstd},
	} {
		b.Run(codec.name, func(b *testing.B) {
			room, into := make([]byte, packRoom(make([]byte, snapshotPiece))), make([]byte, snapshotPiece)
			var packing, unpacking time.Duration
			var size, skipped int
			b.SetBytes(int64(len(pages)))
			for b.Loop() {
				size, skipped = 0, 0
				for part := range slices.Chunk(pages, snapshotPiece) {
					if zero(part) {
						skipped += len(part)
						continue
					}
					begun := time.Now()
					packed := codec.pack(room, part)
					between := time.Now()
					noError(b, codec.unpack(into[:len(part)], packed))
					packing, unpacking = packing+between.Sub(begun), unpacking+time.Since(between)
					size += len(packed)
				}
			}
			b.ReportMetric(packing.Seconds()*1000/float64(b.N), "pack-ms/op")
			b.ReportMetric(unpacking.Seconds()*1000/float64(b.N), "unpack-ms/op")
			b.ReportMetric(float64(size)/1e6, "MB")
			b.ReportMetric(float64(len(pages)-skipped)/1e6, "raw-MB")
		})
	}
}

// BenchmarkPush tells what the copy of a snapshot to a bucket costs: as it is made of one that nothing
// waits for, and of one that a client waits for, over the loopback and over a link of 100 MB/s.
func BenchmarkPush(b *testing.B) {
	for name, link := range map[string]*rate.Limiter{"loopback": nil, "100 MB a second": rate.NewLimiter(100e6, 1<<20)} {
		for _, waits := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s, waits %v", name, waits), func(b *testing.B) {
				one, s := saved(b)
				one.bucket = remote(b, link)
				noError(b, one.Take(b.Context()))
				dir, _, err := one.dir.Get(s.ID)
				noError(b, err)
				b.SetBytes(s.Size())
				b.ResetTimer()
				before := used()
				for b.Loop() {
					if waits {
						one.Ahead(s.ID, dir)
					}
					noError(b, one.PushFiles(b.Context(), s.ID))
					noError(b, one.bucket.Remove(b.Context(), snapshots+string(s.ID)+"/"+recordName))
				}
				b.ReportMetric(float64((used()-before).Milliseconds())/float64(b.N), "cpu-ms/op")
				b.ReportMetric(float64(kept(b, one, s.ID))/1e6, "MB")
			})
		}
	}
}

// remote is a bucket of a server of S3 in this process, behind a link.
func remote(b *testing.B, link *rate.Limiter) *blob.Bucket {
	backend := s3mem.New()
	noError(b, backend.CreateBucket("box"))
	server := httptest.NewUnstartedServer(gofakes3.New(backend).Server())
	if link != nil {
		server.Listener = narrow{server.Listener, link}
	}
	server.Start()
	b.Cleanup(server.Close)
	env := map[string]string{"AWS_ENDPOINT_URL": server.URL, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
	bucket, err := blob.Open("s3://box", func(name string) string { return env[name] })
	noError(b, err)
	return bucket
}

// kept is how many bytes a bucket has of a snapshot.
func kept(b *testing.B, r *Replica, id cay.SnapshotID) (bytes int64) {
	for o, err := range r.bucket.List(b.Context(), snapshots+string(id)+"/") {
		noError(b, err)
		bytes += o.Size
	}
	return bytes
}

func node(b *testing.B) *Replica {
	data := b.TempDir()
	dir, err := snapshot.Open(data)
	noError(b, err)
	bucket, err := blob.OpenDir(filepath.Join(data, "bucket"))
	noError(b, err)
	r := New(bucket, dir, "", newKey(), "one", func(int64) error { return nil })
	b.Cleanup(func() { _ = r.Close() })
	return r
}

// saved is a node with a snapshot of memory.
func saved(b *testing.B) (*Replica, cay.Snapshot) {
	one, pages := node(b), memory(b)
	image := filepath.Join(b.TempDir(), "image")
	noError(b, os.WriteFile(image, noise(2, 1<<10), 0o600))
	root, err := one.dir.AddImage(image)
	noError(b, err)
	tmp, err := one.dir.Begin()
	noError(b, err)
	noError(b, os.WriteFile(filepath.Join(tmp, "pages"), pages, 0o600))
	s := cay.Snapshot{Format: 1, ID: cay.NewSnapshotID(), Kind: cay.MemorySnapshot, Team: "t", Root: root,
		Files: []cay.SnapFile{{Name: "pages", Size: int64(len(pages)), CRC32C: fmt.Sprintf("%08x", sum(pages))}}}
	noError(b, one.dir.Commit(tmp, s))
	return one, s
}

// BenchmarkPeer tells what a snapshot costs that comes from another node: the processor of both, over
// TLS and the loopback, and over a link of 100 MB/s; and how long a guest waits for 32 parts of it, one
// after the other, while all of it comes.
func BenchmarkPeer(b *testing.B) {
	for name, link := range map[string]*rate.Limiter{"loopback": nil, "100 MB a second": rate.NewLimiter(100e6, 1<<20)} {
		b.Run(name, func(b *testing.B) {
			one, s := saved(b)
			b.SetBytes(s.Size())
			other := readerOf(b, one, link)
			b.ResetTimer()
			before, waits := used(), time.Duration(0)
			for b.Loop() {
				a, err := other.arrive(b.Context(), s.ID)
				noError(b, err)
				var guest sync.WaitGroup
				guest.Go(func() { waits += touches(b, a) })
				noError(b, a.bringAll(b.Context()))
				guest.Wait()
				a.end("", context.Canceled)
			}
			b.ReportMetric(float64((used()-before).Milliseconds())/float64(b.N), "cpu-ms/op")
			b.ReportMetric(float64(waits.Milliseconds())/float64(b.N), "guest-ms/op")
		})
	}
}

// readerOf is a node that reads snapshots from another one.
func readerOf(b *testing.B, one *Replica, link *rate.Limiter) *Replica {
	server := httptest.NewUnstartedServer(one)
	server.EnableHTTP2 = false
	if link != nil {
		server.Listener = narrow{server.Listener, link}
	}
	server.StartTLS()
	b.Cleanup(server.Close)
	transport := server.Client().Transport.(*http.Transport)
	transport.MaxIdleConnsPerHost = 256
	ask := func(ctx context.Context, path string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+path, http.NoBody)
		if err != nil {
			return nil, err
		}
		return transport.RoundTrip(r)
	}
	other := node(b)
	other.Ask(func(context.Context, cay.SnapshotID) ([]Maker, error) { return []Maker{{Node: "one", Ask: ask}}, nil }, slog.New(slog.DiscardHandler))
	return other
}

// touches waits for 32 parts of a memory that are far from each other, and returns how long that took.
func touches(b *testing.B, a *arrival) time.Duration {
	begun, size := time.Now(), a.s.Size()
	for i := range int64(32) {
		if _, err := a.Await(b.Context(), "pages", i*37%32*size/32, 1); err != nil {
			b.Error(err)
		}
	}
	return time.Since(begun)
}

// narrow is a listener whose connections share a link.
type narrow struct {
	net.Listener
	link *rate.Limiter
}

func (n narrow) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	return narrowed{c, n.link}, err
}

type narrowed struct {
	net.Conn
	link *rate.Limiter
}

func (n narrowed) Read(b []byte) (int, error) {
	got, err := n.Conn.Read(b[:min(len(b), 64<<10)])
	_ = n.link.WaitN(context.Background(), got)
	return got, err
}

func (n narrowed) Write(b []byte) (sent int, err error) {
	for part := range slices.Chunk(b, 64<<10) {
		_ = n.link.WaitN(context.Background(), len(part)) // no wait of so many bytes is refused
		more, err := n.Conn.Write(part)
		if sent += more; err != nil {
			return sent, err
		}
	}
	return sent, nil
}
