package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"sync"

	"github.com/mattn/go-sqlite3"
)

// pool is a handle on the database whose close waits until the last connection
// is closed: sql.DB does not wait for those in use. Only the last connection
// to a database folds the write-ahead log back and removes it, and none does of
// several that are closed at the same moment.
type pool struct {
	*sql.DB
	dsn  string
	life sync.RWMutex // held for reading by every connection as long as it is open
	once sync.Once
}

var _ driver.Connector = (*pool)(nil)

// connect keeps the statements of each connection prepared: the same few come
// again and again, and preparing one takes longer than running most.
func connect(path, option string, conns int) *pool {
	p := &pool{dsn: (&url.URL{Scheme: "file", Path: path}).String() +
		"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000&_foreign_keys=true&_stmt_cache_size=64&" + option}
	p.DB = sql.OpenDB(p)
	p.SetMaxOpenConns(conns)
	p.SetMaxIdleConns(conns)
	return p
}

// Connect implements driver.Connector.
func (p *pool) Connect(context.Context) (driver.Conn, error) {
	if !p.life.TryRLock() {
		return nil, sql.ErrConnDone
	}
	c, err := new(sqlite3.SQLiteDriver).Open(p.dsn)
	if err != nil {
		p.life.RUnlock()
		return nil, fmt.Errorf("cannot open a connection: %w", err)
	}
	sc, ok := c.(*sqlite3.SQLiteConn)
	if !ok {
		p.life.RUnlock()
		return nil, fmt.Errorf("cannot use connection of type %T", c)
	}
	return &conn{SQLiteConn: sc, pool: p}, nil
}

// Driver implements driver.Connector.
func (p *pool) Driver() driver.Driver { return new(sqlite3.SQLiteDriver) }

// close refuses new work and waits for what is under way.
func (p *pool) close() (err error) {
	p.once.Do(func() {
		err = p.DB.Close()
		p.life.Lock() // for good
	})
	return err
}

// conn is one connection. It outlives a transaction that is cut off: were it
// given up then, as is done with one that cannot say that it is sound, the
// writer might not be there to be the last that is closed.
type conn struct {
	*sqlite3.SQLiteConn
	pool *pool
	once sync.Once
}

var (
	_ driver.SessionResetter = (*conn)(nil)
	_ driver.Validator       = (*conn)(nil)
)

// ResetSession implements driver.SessionResetter. There is nothing to reset.
func (c *conn) ResetSession(context.Context) error { return nil }

// IsValid implements driver.Validator: no transaction was left open.
func (c *conn) IsValid() bool { return c.AutoCommit() }

// Close implements driver.Conn.
func (c *conn) Close() error {
	err := c.SQLiteConn.Close()
	c.once.Do(c.pool.life.RUnlock)
	return err
}
