package operator

import (
	"testing"
	"time"

	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/keys/member"
	"github.com/cay-run/cay/internal/keys/seal"
	"github.com/cay-run/cay/internal/store/pgtest"
)

// A start renews an old certificate of a member; one that breaks off between the records and the
// files is followed by the next start.
func TestMemberIsRenewed(t *testing.T) {
	ctx := t.Context()
	server := pgtest.Start(t)
	cfg := config.Default()
	cfg.Data, cfg.Run = t.TempDir(), t.TempDir()
	cfg.DatabaseURL, cfg.ClusterAddress = server.URL(server.Database(t, "")), "127.0.0.1:0"
	id, err := InitCluster(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	key, err := seal.Open(cfg.Data)
	if err != nil {
		t.Fatal(err)
	}
	db, err := OpenRecords(ctx, cfg, key)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	start := func() Lease {
		t.Helper()
		l, err := TakeLease(ctx, cfg, db)
		if err != nil {
			t.Fatal(err)
		}
		n, err := db.Node(ctx, id)
		own, err2 := member.Open(cfg.Data)
		if err != nil || err2 != nil || n.Fingerprint != l.Member.Fingerprint || own.Fingerprint != n.Fingerprint {
			t.Fatalf("the records have %s, the server %s, the directory %s: %v, %v", n.Fingerprint, l.Member.Fingerprint, own.Fingerprint, err, err2)
		}
		return l
	}
	first := start()
	if again := start(); again.Member.Fingerprint != first.Member.Fingerprint {
		t.Error("a new certificate is renewed")
	}
	l := start()
	if err := l.renewMember(ctx, cfg.Data, time.Now().AddDate(0, 6, 0)); err != nil {
		t.Fatal(err)
	}
	second := start()
	if second.Member.Fingerprint == first.Member.Fingerprint {
		t.Error("an old certificate is not renewed")
	}
	c, err := db.Cluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := seal.Secret(cfg.Data + "/" + seal.File)
	if err != nil {
		t.Fatal(err)
	}
	files, err := issue(c, secret, id)
	if err != nil {
		t.Fatal(err)
	}
	next, err := member.Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := files.WriteNext(cfg.Data); err != nil {
		t.Fatal(err)
	}
	if l := start(); l.Member.Fingerprint != second.Member.Fingerprint {
		t.Error("a certificate counts before the records have it")
	}
	if err := db.SetFingerprint(ctx, id, start().Epoch, next.Fingerprint); err != nil {
		t.Fatal(err)
	}
	if l := start(); l.Member.Fingerprint != next.Fingerprint {
		t.Error("a renewal that broke off is not followed")
	}
}
