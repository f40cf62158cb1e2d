package store_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cay-run/cay/internal/store"
	"github.com/cay-run/cay/internal/store/pgtest"
	"github.com/cay-run/cay/internal/store/storetest"
)

// TestPgBouncer has the suite pass behind a pooler that gives a connection to each
// transaction, as clusters of many nodes need one.
func TestPgBouncer(t *testing.T) {
	if os.Getenv("CAY_TEST_PGBOUNCER") == "" {
		t.Skip("NOT TESTED HERE: make test-pgbouncer has the suite pass behind PgBouncer")
	}
	server := pgtest.Start(t, "max_connections=500")
	dir := server.Dir()
	file := filepath.Join(dir, "pgbouncer.ini")
	text := fmt.Sprintf(`[databases]
* = host=%[1]s
[pgbouncer]
unix_socket_dir = %[1]s
listen_addr =
listen_port = 6432
auth_type = trust
auth_file = %[1]s/users
pool_mode = transaction
default_pool_size = 20
max_client_conn = 1000
server_idle_timeout = 1
ignore_startup_parameters = extra_float_digits,lock_timeout,idle_in_transaction_session_timeout
`, dir)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "users"), []byte(`"cay" ""`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("pgbouncer", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: pgtest.Credential(t)}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGINT); _ = cmd.Wait() })
	address := func(name string) string {
		return "postgres://cay@/" + name + "?port=6432&default_query_exec_mode=exec&host=" + url.QueryEscape(dir)
	}
	for i := 0; ; i++ {
		if conn, err := pgx.Connect(t.Context(), address("postgres")); err == nil {
			_ = conn.Close(t.Context())
			break
		} else if i == 100 {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	storetest.Run(t, func(t testing.TB) store.Store { return storetest.OpenPostgres(t, address(server.Database(t, ""))) })
}
