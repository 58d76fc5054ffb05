-- 0.5 % of the customers: 2.3 % by their balance, a fifth of these by their market segment.
SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority
FROM customer, orders, lineitem
WHERE c_acctbal BETWEEN 1000.00 AND 1250.00
    AND c_mktsegment = 'BUILDING'
    AND o_custkey = c_custkey
    AND o_orderdate < '1995-03-15'
    AND l_orderkey = o_orderkey
    AND l_shipdate > '1995-03-15'
GROUP BY l_orderkey, o_orderdate, o_shippriority
ORDER BY revenue DESC, o_orderdate, l_orderkey
LIMIT 10
