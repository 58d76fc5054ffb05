-- 0.5 % of the customers, by their balance.
SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS quantity
FROM customer, orders, lineitem
WHERE c_acctbal BETWEEN 5000.00 AND 5055.00
    AND o_custkey = c_custkey
    AND l_orderkey = o_orderkey
GROUP BY c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice
HAVING sum(l_quantity) > 200
ORDER BY o_totalprice DESC, o_orderdate, o_orderkey
LIMIT 100
